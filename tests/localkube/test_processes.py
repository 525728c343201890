"""A process is ours only as long as pid, start time and boot are those of its pid file."""

import dataclasses
import os
import signal
import subprocess
import sys

import pytest

from localkube import processes
from localkube.processes import Identity

SLEEP = [sys.executable, "-c", "import time; print('started', flush=True); time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('started', flush=True); time.sleep(60)",
]


@pytest.fixture
def start(tmp_path):
    started = []

    def _start(argv):
        identity = processes.start(argv, log=tmp_path / "log", pid_file=tmp_path / "pid.json", env=dict(os.environ))
        started.append(identity)
        return identity

    yield _start
    for identity in started:
        if processes.is_alive(identity):
            os.kill(identity.pid, signal.SIGKILL)
            processes.wait_gone([identity], 5)


def wait_for_text(path, text):
    with subprocess.Popen(["timeout", "10", "sh", "-c", f"until grep -q {text} {path}; do :; done"]) as waiting:
        assert waiting.wait() == 0


@pytest.mark.parametrize("command", ["sleep", "a b", "evil) S 1 (x", "((("])
def test_a_stat_line_is_read_whatever_the_command_is_called(command):
    numbers = " ".join(str(n) for n in range(4, 53))
    assert processes.parse_stat(f"77 ({command}) R {numbers}") == ("R", 22)


def test_we_find_ourselves():
    identity = processes.identify(os.getpid())
    assert identity is not None
    assert processes.is_alive(identity)


def test_nobody_is_found_under_an_unused_pid(tmp_path):
    assert processes.identify(12345, proc=tmp_path) is None


@pytest.mark.parametrize("state", ["Z", "X"])
def test_a_process_that_ended_but_was_not_collected_counts_as_gone(tmp_path, state):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(f"7 (x) {state} " + " ".join(["0"] * 49))
    assert processes.identify(7, proc=tmp_path) is None


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another boot"}])
def test_a_recycled_pid_is_not_taken_for_ours(change):
    me = processes.identify(os.getpid())
    assert not processes.is_alive(dataclasses.replace(me, **change))


def test_a_recycled_pid_is_never_ended(tmp_path, start):
    stranger = start(SLEEP)
    file = tmp_path / "other.json"
    processes.write_pid_file(file, dataclasses.replace(stranger, start_ticks=stranger.start_ticks - 1))
    assert processes.stop_by_file(file, grace_s=0.1) is False
    assert processes.is_alive(stranger)
    assert not file.exists()


def test_a_pid_file_gives_back_what_was_written(tmp_path):
    identity = Identity(1, 2, "boot")
    processes.write_pid_file(tmp_path / "new" / "a.json", identity)
    assert processes.read_pid_file(tmp_path / "new" / "a.json") == identity


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', '{"pid": "x", "start_ticks": 1, "boot_id": ""}'])
def test_a_torn_pid_file_names_nobody(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    assert processes.read_pid_file(tmp_path / "a.json") is None
    assert not processes.is_alive(None)


def test_a_started_process_is_found_through_its_file_and_ended_politely(tmp_path, start):
    identity = start(SLEEP)
    assert processes.read_pid_file(tmp_path / "pid.json") == identity
    assert processes.stop_by_file(tmp_path / "pid.json", grace_s=5) is True
    assert not processes.is_alive(identity)


def test_a_process_that_ignores_the_request_is_ended_by_force(tmp_path, start):
    identity = start(STUBBORN)
    wait_for_text(tmp_path / "log", "started")
    processes.stop([identity], grace_s=0.2)
    assert not processes.is_alive(identity)


def test_a_logs_tail_is_its_last_lines(tmp_path):
    (tmp_path / "log").write_text("".join(f"line {n}\n" for n in range(100)))
    assert processes.tail(tmp_path / "log", 2).split("\n") == ["  | line 98", "  | line 99"]


def test_the_tail_of_a_missing_log_says_so(tmp_path):
    assert processes.tail(tmp_path / "none") == "(no log)"
