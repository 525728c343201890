"""How images reach a cluster of the user's own."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tools.images import content
from tools.images.build import Names
from tools.images.deliver import deliver, loopback_options
from tools.images.settings import REPOSITORY, ImagesFailed, Settings
from tools.images.store import Store

BUILDAH = """#!{python}
import json, pathlib, sys
arguments = sys.argv[1:]
with open({log!r}, "a") as log:
    print(" ".join(arguments), file=log)
if "images" in arguments:
    print(json.dumps([{{"id": "1", "names": {names!r}}}]))
if "push" in arguments and arguments[-1].startswith("docker-archive:"):
    pathlib.Path(arguments[-1].split(":")[1]).write_text("an archive")
"""


class Stand:
    """A store whose buildah writes down what it is asked to do."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.settings = Settings(cache=folder, **environment)
        self.names = Names(self.settings.repository, f"{content.VERSION}-abc", {})
        self.log = folder / "buildah.log"
        program = folder / "bin" / "buildah"
        program.parent.mkdir()
        every = [name(part) for name in (self.names.image, self.names.release) for part in content.PARTS]
        program.write_text(BUILDAH.format(python=sys.executable, log=str(self.log), names=every))
        program.chmod(0o755)

    def deliver(self) -> list[str]:
        """Hand over all images; returns the pushes that buildah was asked for."""
        deliver(self.settings, Store(self.settings), self.names, lambda _: None)
        return [line.partition(" push ")[2] for line in self.log.read_text().splitlines() if " push " in line]


@pytest.fixture
def path_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Find our buildah before any other."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")


@pytest.mark.usefixtures("path_with")
def test_with_a_registry_every_image_is_pushed_there(tmp_path: Path):
    stand = Stand(tmp_path, {"context": "kind", "registry": "r.example/team"})
    pushed = [line.split()[-1] for line in stand.deliver()]
    tags = (f"{content.VERSION}-abc", content.VERSION)
    wanted = [f"docker://r.example/team/{part}:{tag}" for tag in tags for part in content.PARTS]
    assert pushed == wanted


@pytest.mark.usefixtures("path_with")
def test_with_a_command_each_archive_is_loaded_and_removed(tmp_path: Path):
    seen = tmp_path / "seen"
    command = (
        f"{shlex.quote(sys.executable)} -c \"import sys; open('{seen}','a').write(open(sys.argv[1]).read())\" {{}}"
    )
    stand = Stand(tmp_path, {"context": "kind", "load_command": command})
    assert len(stand.deliver()) == 6
    assert seen.read_text() == "an archive" * 6
    assert list(stand.settings.scratch.iterdir()) == []


@pytest.mark.usefixtures("path_with")
def test_a_command_that_fails_leaves_no_archive_behind(tmp_path: Path):
    stand = Stand(tmp_path, {"context": "kind", "load_command": "ls /no-such-folder {}"})
    with pytest.raises(ImagesFailed, match="no-such-folder"):
        stand.deliver()
    assert list(stand.settings.scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("registry", "options"),
    [
        ("127.0.0.1:5000/d", ["--tls-verify=false"]),
        ("localhost/d", ["--tls-verify=false"]),
        ("r.example:5000/d", []),
        ("127.0.0.1.example/d", []),
    ],
)
def test_only_a_registry_on_this_machine_is_spoken_to_without_tls(registry: str, options: list[str]):
    assert loopback_options(registry) == options


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"DORMOUSE_CONTEXT": "kind"}, "DORMOUSE_CONTEXT=kind .* DORMOUSE_REGISTRY.* or DORMOUSE_IMAGE_LOAD"),
        (
            {"DORMOUSE_CONTEXT": "kind", "DORMOUSE_REGISTRY": "r", "DORMOUSE_IMAGE_LOAD": "load {}"},
            "both set: unset one",
        ),
        ({"DORMOUSE_CONTEXT": "kind", "DORMOUSE_IMAGE_LOAD": "load"}, "DORMOUSE_IMAGE_LOAD='load' has no {}"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_name(environment: dict[str, str], complaint: str):
    with pytest.raises(ImagesFailed, match=complaint):
        Settings.from_environment(environment)


def test_a_registry_counts_only_with_a_cluster_of_ones_own():
    assert Settings.from_environment({"DORMOUSE_REGISTRY": "r.example/d"}).repository == REPOSITORY
