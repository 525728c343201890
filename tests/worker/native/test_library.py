"""Where the library is found, and that no other sources' library is ever called."""

import shutil
import subprocess
import sys

import pytest

from dormouse_worker.native import build
from dormouse_worker.native.library import Missing, open_library


@pytest.mark.usefixtures("variants")
def test_a_library_of_other_sources_is_refused():
    found = open_library(build.ensure(), "0123456789ab")
    assert isinstance(found, Missing)
    assert "was compiled from other sources" in found.reason


def test_what_is_no_library_is_refused(tmp_path):
    path = tmp_path / "lib.so"
    path.write_bytes(b"no library")
    found = open_library(path)
    assert isinstance(found, Missing)
    assert found.reason.startswith("the kernels cannot be loaded: ")


def test_every_processor_has_a_variant_and_the_last_is_the_portable_one(variants):
    assert list(variants)[-1] == "portable"


def test_without_a_compiler_nothing_is_built_and_the_reason_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.NotBuilt, match="there is no compiler"):
        build.build(tmp_path / "out")
    done = subprocess.run([sys.executable, build.__file__, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the worker computes with torch alone" in done.stderr


def test_a_compiler_that_fails_leaves_nothing(tmp_path, monkeypatch):
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho no such header\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(build.NotBuilt, match="the compiler failed: no such header"):
        build.build(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_the_digest_follows_the_sources(tmp_path):
    copied = tmp_path / "src"
    shutil.copytree(build.SOURCES, copied)
    assert build.digest(copied) == build.digest()
    (copied / "abi.h").write_text("// other\n")
    assert build.digest(copied) != build.digest()
