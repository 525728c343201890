"""The workers' journal, and what is read of the gateway's process."""

from __future__ import annotations

import pytest

from bench.ladder.gateway_process import parse_held, parse_peak
from bench.ladder.journal import Journal, JournalWriter


def test_the_journal_tells_what_happened_at_one_deployment_since_a_moment(tmp_path):
    writer, journal = JournalWriter(tmp_path / "journal"), Journal(tmp_path / "journal")
    writer.write("ready", "a")
    writer.write("request", "b", request_id="7")
    first = journal.of("a")[0]
    writer.write("asleep", "a", level=2)
    later = journal.of("a", since_s=first.at_s + 1e-9)
    assert [(entry.what, entry.level) for entry in later] == [("asleep", 2)]
    assert [entry.request_id for entry in journal.of("b")] == ["7"]


def test_a_line_that_is_only_half_there_is_read_when_it_is_whole(tmp_path):
    path = tmp_path / "journal"
    line = b'{"at_s":1.0,"what":"ready","deployment":"a"}\n'
    path.write_bytes(line + line[:10])
    journal = Journal(path)
    assert len(journal.read()) == 1
    path.write_bytes(line + line)
    assert len(journal.read()) == 2


def test_held_requests_of_all_models_are_summed():
    text = """# TYPE dormouse_held_requests gauge
dormouse_held_requests{model="fleet/a"} 3.0
dormouse_held_requests{model="fleet/b"} 1000.0
dormouse_hold_seconds_bucket{le="1.0",model="fleet/a"} 5.0
"""
    assert parse_held(text) == 1003
    assert parse_held("") == 0


def test_the_highest_memory_is_read_in_bytes():
    assert parse_peak("Name:\tpython\nVmHWM:\t    2048 kB\nVmRSS:\t 1024 kB\n") == 2 << 20


def test_a_process_that_has_ended_has_no_memory():
    with pytest.raises(ValueError, match="VmHWM is not in"):
        parse_peak("Name:\tpython\n")
