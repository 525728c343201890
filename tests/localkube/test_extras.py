"""Programs that only tests need are built apart from the cluster's, once per content of their pins."""

import pytest

from localkube import build, extras
from localkube.errors import BuildError
from localkube.extras import TOXIPROXY, Extra
from localkube.progress import Progress
from localkube.spec import Paths


@pytest.fixture
def progress():
    return Progress(clock=lambda: 0.0, write=lambda _: None)


def test_programs_that_stand_are_taken_as_they_are(tmp_path, progress):
    paths = Paths(tmp_path)
    folder = extras.folder(paths, TOXIPROXY)
    folder.mkdir(parents=True)
    assert extras.ensure(paths, TOXIPROXY, progress) == folder


def test_its_pins_name_its_folder_and_are_no_part_of_the_build_of_the_cluster(tmp_path):
    pins = list(build.read_sources(TOXIPROXY.source))
    assert {name for name, _ in pins} == {"toxiproxy/go.mod", "toxiproxy/go.sum"}
    assert build.digest_of(iter(pins)) in str(extras.folder(Paths(tmp_path), TOXIPROXY))
    assert "toxiproxy" not in {module.folder for module in build.MODULES}


def test_a_build_that_fails_names_its_module_and_the_compilers_words(tmp_path, progress, monkeypatch):
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho 'no such package' >&2\nexit 1\n")
    go.chmod(0o755)
    monkeypatch.setattr(extras, "find_go", lambda *_: go)
    with pytest.raises(BuildError, match=r"tools/toxiproxy failed \(1\):\nno such package"):
        extras.ensure(Paths(tmp_path / "root"), Extra("toxiproxy", {"nowhere": "toxiproxy"}), progress)


@pytest.mark.parametrize(("tags", "flag"), [("one,two", "-tags one,two "), ("", "-buildvcs=false -ldflags")])
def test_the_tags_of_a_build_are_the_compilers(tmp_path, progress, monkeypatch, tags, flag):
    """Those of other people's releases leave out what would take longest to compile."""
    go = tmp_path / "go"
    go.write_text('#!/bin/sh\necho "$@" >&2\nexit 1\n')
    go.chmod(0o755)
    monkeypatch.setattr(extras, "find_go", lambda *_: go)
    with pytest.raises(BuildError, match=flag):
        extras.ensure(Paths(tmp_path / "root"), Extra("toxiproxy", {"nowhere": "toxiproxy"}, tags=tags), progress)
