"""Books that processes share: what one holds another cannot have, and what was killed holds nothing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.model.device.driver import DeviceOutOfMemory
from dormouse_worker.model.device.ledger import MAX_ROWS
from dormouse_worker.model.device.ledger_file import DeviceShare, offer_device, read_usage

PROGRAM = Path(__file__).with_name("ledger_process.py")
MIB = 1 << 20
TOTAL, CONTEXT = 512 * MIB, 16 * MIB


class Process:
    """A process on the device."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        assert self.hear() == "ok"

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def tell(self, line: str) -> str:
        self.say(line)
        return self.hear()

    def steps(self, count: int) -> None:
        """Wait until so many steps are done."""
        assert self.process.stdout is not None
        while count:
            done = self.process.stdout.read(count)
            assert done == b"." * len(done) != b""
            count -= len(done)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    offer_device(tmp_path / "gpu-0", TOTAL)
    return tmp_path / "gpu-0"


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Process]]:
    """Start processes on the device; none is left."""
    with ExitStack() as stack:

        def start_one(who: str, *, budget_bytes: int = 0) -> Process:
            command = [sys.executable, str(PROGRAM), str(folder), who, str(CONTEXT), str(budget_bytes)]
            process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
            )
            stack.callback(process.kill)
            return Process(process)

        yield start_one


@contextmanager
def shared(folder: Path, who: str, **options: int) -> Iterator[DeviceShare]:
    share = DeviceShare(folder, who, **options)
    try:
        yield share
    finally:
        share.close()


def test_what_one_process_holds_another_cannot_have_until_it_is_given_back(folder, start):
    a, b = start("a"), start("b")
    assert a.tell(f"take {400 * MIB}") == "ok"
    assert b.tell(f"take {100 * MIB}") == f"{(400 + 100 + 32 - 512) * MIB} missing"
    assert a.tell(f"give {400 * MIB}") == "ok"
    assert b.tell(f"take {100 * MIB}") == "ok"
    usage = read_usage(folder)
    assert {usage.names[number]: row.held_bytes for number, row in usage.books.rows.items()} == {"a": 0, "b": 100 * MIB}
    assert usage.marks.highest_bytes == 432 * MIB
    assert usage.violations == (f"b misses {20 * MIB} bytes of {TOTAL}",)


def test_a_promise_that_does_not_fit_takes_nothing_and_is_no_violation(folder, start):
    a, b = start("a"), start("b")
    assert a.tell(f"take {400 * MIB}") == "ok"
    assert b.tell(f"promise {100 * MIB}") == f"{20 * MIB} missing"
    usage = read_usage(folder)
    assert usage.violations == ()
    assert (usage.marks.highest_bytes, usage.marks.most_awake) == (432 * MIB, 1)


def test_what_is_promised_to_one_is_given_to_it_alone(folder, start):
    a, b = start("a"), start("b")
    assert a.tell(f"promise {400 * MIB}") == "ok"
    assert b.tell(f"take {100 * MIB}").endswith("missing")
    assert a.tell(f"take {400 * MIB}") == "ok"
    assert read_usage(folder).books.used_bytes == 432 * MIB


def test_two_that_are_awake_at_once_are_told_by_name(folder, start):
    for who in ("a", "b"):
        start(who).tell(f"take {MIB}")
    usage = read_usage(folder)
    assert usage.marks.most_awake == 2
    assert usage.violations == ("b is awake beside a",)


def test_who_passes_a_budget_is_let_and_told(folder, start):
    a = start("a", budget_bytes=100 * MIB)
    assert a.tell(f"take {84 * MIB}") == "ok"
    assert read_usage(folder).marks.over_budget_bytes == 0
    assert a.tell(f"take {MIB}") == "ok"
    usage = read_usage(folder)
    assert usage.marks.over_budget_bytes == MIB
    assert usage.violations == (f"a holds {101 * MIB} bytes of a budget of {100 * MIB}",)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_killed_within_a_step_leaves_books_that_the_next_reads_right(folder, start, when):
    a, b = start("a"), start("b")
    assert a.tell(f"take {100 * MIB}") == "ok"
    assert a.tell(f"die {when}") == "ok"
    a.say(f"take {300 * MIB}")
    assert a.hear() == ""
    assert a.process.wait() == -signal.SIGKILL
    assert b.tell(f"take {TOTAL - CONTEXT}") == "ok"
    usage = read_usage(folder)
    assert list(usage.names.values()) == ["b"]
    assert usage.marks.highest_bytes == TOTAL


@pytest.mark.parametrize("seed", range(6))
def test_processes_killed_at_any_point_give_everything_back_and_the_sum_never_passes_the_size(folder, start, seed):
    draw = random.Random(seed)
    crowd = [start(f"{seed}-{number}") for number in range(3)]
    for process in crowd:
        process.say(f"churn {draw.random()}")
    for process in draw.sample(crowd, k=len(crowd)):
        process.steps(draw.randrange(1, 40))
        process.kill()
        assert read_usage(folder).books.used_bytes <= TOTAL
    usage = read_usage(folder)
    assert (usage.books.rows, usage.names) == ({}, {})
    assert usage.marks.highest_bytes <= TOTAL


def test_the_row_of_a_killed_process_is_the_next_ones(folder, start):
    start("a").kill()
    start("b")
    assert read_usage(folder).names == {0: "b"}


def test_a_device_without_a_row_left_says_so(folder):
    with ExitStack() as stack:
        for number in range(MAX_ROWS):
            stack.enter_context(shared(folder, str(number)))
        with pytest.raises(InvalidSettings, match=f"used by {MAX_ROWS} processes"):
            DeviceShare(folder, "one more")


def test_a_context_that_does_not_fit_leaves_no_row(folder):
    with shared(folder, "a") as a:
        a.take(TOTAL)
        with pytest.raises(DeviceOutOfMemory):
            DeviceShare(folder, "b", context_bytes=CONTEXT)
        assert list(read_usage(folder).names.values()) == ["a"]


@pytest.mark.parametrize("text", [None, "", "512Mi"])
def test_a_folder_that_is_no_device_is_refused_by_name(tmp_path, text):
    if text is not None:
        (tmp_path / "memory").write_text(text)
    with pytest.raises(InvalidSettings, match=f"{tmp_path} is no stand-in device"):
        DeviceShare(tmp_path, "a")


def test_files_are_everybodys_whoever_made_them(folder):
    before = os.umask(0o077)
    try:
        offer_device(folder, TOTAL)
        with shared(folder, "a") as a:
            a.take(1)
            with pytest.raises(DeviceOutOfMemory):
                a.take(TOTAL)
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o777) for path in folder.rglob("*") if path.is_dir()} == {"0o777"}
    assert all(path.stat().st_mode & 0o666 == 0o666 for path in folder.rglob("*") if path.name != "memory")


class SharedDevice(RuleBasedStateMachine):
    """Shares of one device beside a plain account of who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.folder = Path(self.directory.name) / "gpu-0"
        offer_device(self.folder, 100)
        self.shares: list[DeviceShare] = []
        self.held: list[int] = []
        self.marks = read_usage(self.folder).marks

    def teardown(self) -> None:
        for share in self.shares:
            share.close()
        self.directory.cleanup()

    @precondition(lambda self: len(self.shares) < 4)
    @rule()
    def begin(self) -> None:
        self.shares.append(DeviceShare(self.folder, str(len(self.shares))))
        self.held.append(0)

    @precondition(lambda self: self.shares)
    @rule(data=st.data(), num_bytes=st.integers(1, 60), is_promised=st.booleans())
    def take(self, data: st.DataObject, num_bytes: int, is_promised: bool) -> None:
        which = data.draw(st.integers(0, len(self.shares) - 1))
        share, fits = self.shares[which], sum(self.held) + num_bytes <= 100
        with ExitStack() as stack:
            if not fits:
                missing = stack.enter_context(pytest.raises(DeviceOutOfMemory))
            if is_promised:
                stack.enter_context(share.promised(num_bytes))
                assert self.shares[0].free_bytes() == 100 - sum(self.held) - num_bytes
            share.take(num_bytes)
            self.held[which] += num_bytes
        assert fits or missing.value.missing_bytes == sum(self.held) + num_bytes - 100

    @precondition(lambda self: any(self.held))
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        which = data.draw(st.sampled_from([number for number, held in enumerate(self.held) if held]))
        num_bytes = data.draw(st.integers(1, self.held[which]))
        self.shares[which].give(num_bytes)
        self.held[which] -= num_bytes

    @precondition(lambda self: self.shares)
    @rule(data=st.data(), in_order=st.booleans())
    def end(self, data: st.DataObject, in_order: bool) -> None:
        which = data.draw(st.integers(0, len(self.shares) - 1))
        share = self.shares.pop(which)
        del self.held[which]
        if not in_order:  # as the kernel does with a killed process: the lock is gone, the books say nothing of it
            os.close(share._row)
            share._row = -1
        share.close()

    @invariant()
    def everything_is_someones_or_free(self) -> None:
        usage = read_usage(self.folder)
        assert sorted(row.held_bytes for row in usage.books.rows.values()) == sorted(filter(None, self.held))
        assert usage.books.free_bytes == 100 - sum(self.held)
        for name in ("highest_bytes", "most_awake", "over_size_bytes", "over_budget_bytes"):
            assert getattr(usage.marks, name) >= getattr(self.marks, name)
        self.marks = usage.marks


TestSharedDevice = SharedDevice.TestCase
TestSharedDevice.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
