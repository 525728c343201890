"""What a program says where nobody reads it, or not now."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading

import pytest

from dormouse_api.outlets import Outlet, unhindered_outputs

FOREVER_S = 150.0  # nothing is waited for so long, unless it hangs
CLOSED = """
import os, sys
os.close(1)
sys.stdout = None  # as Python has it where the descriptor is closed from the start
from dormouse_api.outlets import unhindered_outputs
with unhindered_outputs():
    print("to nobody", flush=True)
    opened = os.open(sys.executable, os.O_RDONLY)
sys.stderr.write(f"{opened > 2} {os.readlink('/proc/self/fd/1')}")
"""
LAST = """
from dormouse_api.outlets import unhindered_outputs
with unhindered_outputs():
    for number in range(100_000):
        print(number)
"""


@pytest.fixture
def pipe():
    """A pipe that holds little: its reading end as a file, and the number of its writing end."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "wb") as writer:
        yield reader, writer.fileno()


def finish(outlet):
    """Wait until all is written."""
    outlet.finish(FOREVER_S)
    assert not [thread for thread in threading.enumerate() if thread.name == f"outlet-{outlet.fileno()}"]


def test_what_is_written_arrives_in_its_order(pipe):
    """What was left to the thread is there once it has ended."""
    reader, fd = pipe
    outlet = Outlet(fd)
    for number in range(1000):
        assert outlet.write(b"%d\n" % number) == len(b"%d\n" % number)
    finish(outlet)
    assert [int(reader.readline()) for _ in range(1000)] == list(range(1000))


def test_who_writes_does_not_wait_for_a_reader_and_is_told_of_what_was_lost(pipe):
    """A pipe that nobody reads fills; what comes then waits up to the limit, beyond it is lost."""
    reader, fd = pipe
    line = b"x" * 9999 + b"\n"
    outlet = Outlet(fd, most_bytes=200_000)
    for _ in range(100):
        assert outlet.write(line) == len(line)
    assert repr(outlet).startswith(f"Outlet({fd}, waiting=")
    ending = threading.Thread(target=outlet.finish, args=[FOREVER_S])
    ending.start()
    said = [reader.readline()]
    while not said[-1].startswith(b"("):
        said.append(reader.readline())
    ending.join()
    finish(outlet)
    *lines, last = said
    assert set(lines) == {line}
    assert 20 <= len(lines) < 100
    assert last == b"(%d bytes were lost: nobody read them)\n" % ((100 - len(lines)) * len(line))


def test_the_end_does_not_wait_for_a_reader_either(pipe):
    """The thread may be held up for ever; what ends the program is not."""
    reader, fd = pipe
    outlet = Outlet(fd)
    outlet.write(b"x" * 1_000_000)
    outlet.finish(0.0)
    assert len(reader.read(1_000_000)) == 1_000_000
    finish(outlet)


def test_a_reader_that_is_gone_fails_nobody(pipe):
    """What was for him is dropped, and the thread ends as ever."""
    reader, fd = pipe
    reader.close()
    outlet = Outlet(fd)
    for _ in range(10):
        outlet.write(b"to nobody\n")
    finish(outlet)
    assert repr(outlet) == f"Outlet({fd}, waiting=0, lost=0)"


def test_a_descriptor_that_others_made_non_blocking_loses_nothing(pipe):
    """The flag is shared with whoever shares the descriptor, such as a terminal's other programs."""
    reader, fd = pipe
    os.set_blocking(fd, False)
    outlet = Outlet(fd)
    outlet.write(b"x" * 1_000_000)
    assert len(reader.read(1_000_000)) == 1_000_000
    finish(outlet)


def test_prints_and_logs_go_through_and_the_streams_are_as_before_afterwards(pipe, monkeypatch):
    """Also what a logging handler was given, and what is no text that can be written."""
    reader, fd = pipe
    with os.fdopen(os.dup(fd), "w", encoding="ascii", errors="backslashreplace") as before:
        monkeypatch.setattr(sys, "stdout", before)
        monkeypatch.setattr(sys, "stderr", before)
        with unhindered_outputs():
            handler = logging.StreamHandler(sys.stderr)
            print("first", flush=True)
            sys.stdout.buffer.write(b"second\n")
            sys.stdout.buffer.flush()
            assert [reader.readline() for _ in range(2)] == [b"first\n", b"second\n"]
            handler.emit(logging.makeLogRecord({"msg": "third \N{LATIN SMALL LETTER E WITH ACUTE}"}))
            assert (sys.stdout.fileno(), sys.stdout.isatty()) == (before.fileno(), False)
        assert reader.readline() == b"third \\xe9\n"
        assert (sys.stdout, sys.stderr) == (before, before)
        handler.emit(logging.makeLogRecord({"msg": "too late, and no failure"}))


def test_a_closed_standard_output_is_nobody_and_no_file_takes_its_place():
    """Else what is printed would go into the first socket that is opened."""
    done = subprocess.run([sys.executable, "-c", CLOSED], capture_output=True, text=True, check=True)
    assert done.stderr == "True /dev/null"


def test_a_program_that_ends_has_said_all_to_whoever_reads():
    """The end waits for the thread while its reader takes what it has."""
    done = subprocess.run([sys.executable, "-c", LAST], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(number) for number in range(100_000)]
