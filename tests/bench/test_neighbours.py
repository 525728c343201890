"""What others take of the processor is what is taken, less our own."""

from __future__ import annotations

import os
import time

import pytest

from bench import neighbours
from bench.neighbours import Reading, parse_busy_ticks, parse_ticks

STAT = "cpu  100 10 50 9000 800 3 4 2 70 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
OF_A_PROCESS = "42 (a (strange) name) S 1 42 42 0 -1 4194560 10 20 0 0 {} {} {} {} 20 0 1 0 100 1 1"


def test_idle_and_waiting_time_are_not_busy():
    assert parse_busy_ticks(STAT) == 100 + 10 + 50 + 3 + 4 + 2


def test_a_process_counts_with_those_that_it_has_waited_for():
    assert parse_ticks(OF_A_PROCESS.format(5, 6, 70, 80)) == 161


def test_what_is_ours_is_not_others():
    before, later = Reading(all_s=100, own_s=10, at_s=50), Reading(all_s=116, own_s=24, at_s=58)
    assert before.cores_of_others(later) == pytest.approx(0.25)
    assert before.cores_of_others(Reading(all_s=101, own_s=12, at_s=58)) == 0.0


def write_process(proc, pid, parent, ticks):
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "stat").write_text(f"{pid} (x) S {parent} 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 1 1 1")


def test_this_process_and_all_below_it_are_ours(tmp_path):
    own = os.getpid()
    (tmp_path / "stat").write_text(STAT)
    for pid, parent, ticks in (
        (1, 0, 5000),
        (own, 1, 100),
        (own + 1, own, 20),
        (own + 2, own + 1, 3),
        (own + 3, 1, 700),
    ):
        write_process(tmp_path, pid, parent, ticks)
    reading = neighbours.read(tmp_path)
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    assert reading.own_s == 123 / ticks_per_s
    assert reading.all_s == 169 / ticks_per_s
    assert reading.at_s <= time.monotonic()
