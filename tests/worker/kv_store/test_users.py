"""Who shares a file is seen by the others, as long as he lives."""

import errno
import fcntl
import subprocess
import sys

import pytest

from dormouse_worker.kv_store.users import Users

OTHER = """
import sys
from pathlib import Path
from dormouse_worker.kv_store.users import Users
user = Users(Path(sys.argv[1]))
print(user.has_others(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "users"


def test_who_is_alone_sees_nobody(path):
    user = Users(path)
    assert not user.has_others()


def test_two_see_each_other_until_one_is_gone(path):
    first, second = Users(path), Users(path)
    assert first.has_others()
    assert second.has_others()
    del first
    assert not second.has_others()


def test_a_process_is_seen_until_it_is_killed(path):
    user = Users(path)
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"True\n"
        assert user.has_others()
        process.kill()
    assert not user.has_others()


def test_where_nothing_can_be_locked_others_are_taken_for_granted(path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    assert Users(path).has_others()
    assert "cannot be locked" in caplog.text
