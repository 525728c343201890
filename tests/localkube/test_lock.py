"""One run at a time; whose cluster it is survives the run."""

import os
import threading

import pytest

from localkube import lock
from localkube.cluster import difference
from localkube.lock import Owner

OWNER = Owner("/cache/localkube", "/clone", "abc", "boot-1")


def test_the_owner_is_read_back(tmp_path):
    lock.write_owner(OWNER, tmp_path / "o.json")
    assert lock.read_owner(tmp_path / "o.json") == OWNER


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"root": 1, "unknown": 2}'])
def test_a_torn_note_means_no_owner(tmp_path, content):
    (tmp_path / "o.json").write_text(content)
    assert lock.read_owner(tmp_path / "o.json") is None


def test_forgetting_twice_is_safe(tmp_path):
    lock.forget_owner(tmp_path / "o.json")
    lock.forget_owner(tmp_path / "o.json")


def test_a_second_run_waits_and_says_for_whom(tmp_path):
    path, said, entered = tmp_path / "lock", [], threading.Event()
    heard = threading.Event()

    def say(text):
        said.append(text)
        heard.set()

    def second():
        with lock.machine_lock("second", say, path):
            entered.set()

    with lock.machine_lock("first", said.append, path):
        other = threading.Thread(target=second)
        other.start()
        assert heard.wait(90)
        assert not entered.wait(0.2)
    assert entered.wait(90)
    other.join()
    assert said == [f"waiting for `first` of pid {os.getpid()} in {os.getcwd()}, which holds {path}"]  # noqa: PTH109


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (Owner("/cache/localkube", "/c", "abc", "boot-2"), "restarted"),
        (Owner("/other", "/c", "abc", "boot-1"), "it lives in /cache/localkube, this one in /other"),
        (Owner("/cache/localkube", "/c", "def", "boot-1"), "its localkube is abc, this one def"),
    ],
)
def test_a_cluster_that_cannot_be_adopted_is_explained(new, reason):
    assert reason in difference(OWNER, new)
