"""A cluster that is up gets back the image of pods that its kubelet deleted."""

import sys

import pytest

from localkube import build, second, spec
from localkube.cluster import Cluster
from localkube.spec import Paths

CTR = f"""#!{sys.executable}
import pathlib, sys
images = pathlib.Path(sys.argv[2]).with_suffix(".images")
if sys.argv[-2] == "list":
    print(images.read_text() if images.exists() else "")
else:
    assert b"entry" in sys.stdin.buffer.read()
    images.write_text({spec.PAUSE_IMAGE!r})
    pathlib.Path({{log!r}}).open("a").write("import\\n")
"""


class Healthy(Cluster):
    """A cluster of which all else is well."""

    def is_healthy(self):
        return True


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A cluster whose containerd is a program that keeps names of images in a file beside its socket."""
    ctr = tmp_path / "bin" / "ctr"
    ctr.parent.mkdir()
    ctr.write_text(CTR.format(log=str(tmp_path / "log")))
    ctr.chmod(0o755)
    monkeypatch.setenv("PATH", str(ctr.parent), prepend=":")
    made = Healthy(Paths(tmp_path / "cluster"))
    for paths in (made.paths, made.paths.second):
        paths.containerd_socket.parent.mkdir(parents=True)
    program = build.bin_dir(made.paths) / "pause"
    program.parent.mkdir(parents=True)
    program.write_bytes(b"program")
    return made


def imports(tmp_path):
    log = tmp_path / "log"
    return len(log.read_text().split()) if log.exists() else 0


def test_the_image_of_pods_is_imported_again_once_it_is_gone(cluster, tmp_path):
    assert [cluster.is_up(1), cluster.is_up(1)] == [True, True]
    assert imports(tmp_path) == 1
    cluster.paths.containerd_socket.with_suffix(".images").unlink()
    assert cluster.is_up(1)
    assert imports(tmp_path) == 2


def test_a_second_node_has_its_own_and_is_not_up_while_there_is_none(cluster, tmp_path):
    assert not cluster.is_up(2)
    second.want(cluster.paths)
    assert cluster.is_up(2)
    assert imports(tmp_path) == 2
