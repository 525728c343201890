"""The set-up that every other command stands on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dormouse_worker
from tools import bootstrap


def test_the_cache_is_where_the_variable_says(monkeypatch, tmp_path):
    monkeypatch.setenv("DORMOUSE_CACHE", str(tmp_path / "elsewhere"))
    assert bootstrap.cache_root() == tmp_path / "elsewhere"


def test_the_environment_changes_its_name_with_the_lock_file(monkeypatch, tmp_path):
    lock = tmp_path / "dev.txt"
    lock.write_text("a==1")
    monkeypatch.setattr(bootstrap, "LOCK_FILE", lock)
    before = bootstrap.lock_key()
    lock.write_text("a==2")
    assert bootstrap.lock_key() != before
    assert bootstrap.lock_key().startswith(f"cp3{sys.version_info.minor}-")


def test_an_environment_without_its_mark_is_not_complete(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    assert not bootstrap.is_complete(tmp_path)
    (tmp_path / bootstrap.COMPLETE).touch()
    assert bootstrap.is_complete(tmp_path)


def test_finishing_a_folder_removes_those_of_other_locks(tmp_path):
    for name in ("old", "new.partial"):
        (tmp_path / name).mkdir()
    bootstrap.finish(tmp_path / "new.partial", tmp_path / "new")
    assert [p.name for p in tmp_path.iterdir()] == ["new"]


def test_an_environment_that_another_clone_used_lately_stays(tmp_path):
    for name, used_ago_s in (("ours", 0), ("lately", 99), ("long ago", 101)):
        (tmp_path / name).mkdir()
        (tmp_path / name / bootstrap.COMPLETE).touch()
        then = time.time() - used_ago_s
        os.utime(tmp_path / name / bootstrap.COMPLETE, (then, then))
    (tmp_path / "half").mkdir()
    bootstrap.remove_siblings(tmp_path / "ours", unused_for_s=100)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lately", "ours"]


def test_a_failing_command_stops_the_set_up_and_shows_its_last_words():
    with pytest.raises(SystemExit, match="the last words"):
        bootstrap.run(sys.executable, "-c", "import sys; sys.exit('the last words')")


def test_too_little_disk_is_an_error_with_both_numbers(monkeypatch, tmp_path):
    monkeypatch.setenv("DORMOUSE_CACHE", str(tmp_path))
    monkeypatch.setattr(bootstrap, "NEEDED_BYTES", 1 << 60)
    with pytest.raises(SystemExit, match=r"GiB free and the Python environment needs \d+ GiB.*DORMOUSE_CACHE"):
        bootstrap.check_free_space()


def test_a_second_run_waits_and_says_for_whom(monkeypatch, tmp_path):
    monkeypatch.setenv("DORMOUSE_CACHE", str(tmp_path))
    waiter = "from tools.bootstrap import machine_lock\nwith machine_lock('x'): print('got it')"
    with bootstrap.machine_lock("x"):
        second = subprocess.Popen([sys.executable, "-c", waiter], stdout=subprocess.PIPE, text=True, cwd=bootstrap.ROOT)
        assert second.stdout is not None
        assert f"waiting for pid {bootstrap.os.getpid()} in" in second.stdout.readline()
    said, _ = second.communicate(timeout=90)
    assert said == "got it\n"


def test_a_clone_has_the_shared_commands_with_its_own_interpreter(tmp_path):
    theirs, ours = tmp_path / "shared" / "bin", tmp_path / "clone" / "bin"
    theirs.mkdir(parents=True)
    ours.mkdir(parents=True)
    (theirs / "pytest").write_text(f"#!{theirs}/python3\nimport pytest\n")
    (theirs / "ruff").write_bytes(b"\x7fELF program")
    for name in ("activate", "pip3", "python"):
        (theirs / name).write_text(f"#!{theirs}/python\n")
    (ours / "python").write_text("its own")
    bootstrap.adopt_commands(theirs, ours)
    assert (ours / "pytest").read_text() == f"#!{ours}/python3\nimport pytest\n"
    assert os.access(ours / "pytest", os.X_OK)
    assert (ours / "ruff").resolve() == theirs / "ruff"
    assert (ours / "python").read_text() == "its own"
    assert sorted(file.name for file in ours.iterdir()) == ["pytest", "python", "ruff"]


def test_tests_run_the_packages_of_their_own_clone_and_a_bare_interpreter_sees_none_of_it():
    assert bootstrap.ROOT in Path(dormouse_worker.__file__).parents
    look = "import importlib.util; print(importlib.util.find_spec('dormouse_worker'))"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    said = subprocess.run([bootstrap.bare_python(), "-c", look], env=env, cwd="/", capture_output=True, check=True)
    assert said.stdout == b"None\n"


def test_kernels_that_a_clone_compiled_serve_the_next_one(monkeypatch, tmp_path):
    monkeypatch.setenv("DORMOUSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bootstrap, "say", pytest.fail)
    libraries = [_build_in(monkeypatch, tmp_path / clone, compiles=clone == "first") for clone in ("first", "second")]
    assert [library.read_text() for library in libraries] == ["made by first"] * 2


def _build_in(monkeypatch, clone, *, compiles):
    """Let a clone build, whose compiler writes its name or fails; return where its library is."""
    clone.mkdir()
    script, library = clone / "build.py", clone / "native" / "library.so"
    make = f"FOLDER.mkdir(); LIBRARY.write_text('made by {clone.name}')" if compiles else "LIBRARY.read_text()"
    script.write_text(
        f"from pathlib import Path\nFILE_NAME, FOLDER = 'library.so', Path({str(library.parent)!r})\n"
        "LIBRARY, digest, tree_folder = FOLDER / FILE_NAME, lambda: 'd1', lambda: FOLDER\n"
        f"if __name__ == '__main__':\n    {make}\n"
    )
    monkeypatch.setattr(bootstrap, "KERNELS", script)
    bootstrap.build_kernels()
    return library
