"""Environments beside the one of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.bootstrap import COMPLETE
from tools.side_env import SideEnvironment


@pytest.fixture
def environment(monkeypatch, tmp_path):
    monkeypatch.setenv("DORMOUSE_CACHE", str(tmp_path / "cache"))
    lock, other = tmp_path / "lock.txt", tmp_path / "package-lock.json"
    lock.write_text("a==1")
    other.write_text("{}")
    return SideEnvironment("peers", "peer", "a peer's", (lock, other), needed_bytes=9 << 30)


def nothing(folder):
    raise AssertionError(f"{folder} was finished once already")


@pytest.mark.parametrize("number", [0, 1])
def test_another_lock_is_another_environment(environment, number):
    before = environment.folder
    environment.locks[number].write_text("b==2")
    assert environment.folder != before


def test_an_environment_that_was_not_finished_does_not_count(environment):
    environment.python.parent.mkdir(parents=True)
    environment.python.touch()
    assert not environment.is_made
    (environment.folder / COMPLETE).touch()
    assert environment.is_made


def test_a_second_call_does_nothing(environment, capsys):
    environment.folder.mkdir(parents=True)
    (environment.folder / COMPLETE).touch()
    assert environment.make("downloading", nothing) == environment.folder
    assert capsys.readouterr().out == ""


def test_too_little_space_is_told_with_both_numbers(environment):
    with pytest.raises(SystemExit, match=r"/somewhere has 8\.0 GiB free and a peer's environment needs 9 GiB"):
        environment.check_free_space(Path("/somewhere"), lambda _: 8 << 30)
    environment.check_free_space(Path("/somewhere"), lambda _: environment.needed_bytes)
