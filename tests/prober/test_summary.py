"""What a run's records say of its goals."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.prober import records, summary
from tests.prober.cases import Ask
from tests.prober.probe import Record
from tests.prober.summary import TooFew
from tests.prober.verdicts import Finding, Verdict


def make_record(verdict=Verdict.OK, scenario="ladder", **fields):
    made = Record(scenario, "tiny", Ask(0.5, 3, 8), due_s=10.0, sent_s=10.001)
    defaults = {"first_s": 10.2, "last_s": 10.5, "code": "OK", "first_code": "OK", "start": "warm", "tries": 1}
    for name, value in {**defaults, "finding": Finding(verdict), **fields}.items():
        setattr(made, name, value)
    return made


def test_a_run_without_a_loss_reaches_the_goal():
    row = summary.lost_row([make_record()] * 10_000)
    assert (row.ours, row.unit, row.holds) == (0, "of 10,000 requests", True)


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict is not Verdict.OK])
def test_a_single_bad_answer_misses_it(verdict):
    row = summary.lost_row([*[make_record()] * 9_999, make_record(verdict)])
    assert (row.ours, row.holds) == (1, False)


def test_too_few_requests_say_nothing():
    with pytest.raises(TooFew, match="9999 requests; at least 10000"):
        summary.lost_row([make_record()] * 9_999)


def test_what_a_killed_gateway_takes_along_is_not_lost_but_judged_by_its_own_goal():
    killed = make_record(Verdict.LOST, summary.GATEWAY_KILL)
    assert summary.lost_row([*[make_record()] * 10_000, killed]).holds
    with pytest.raises(TooFew, match="10000"):
        summary.lost_row([*[make_record()] * 9_999, killed])


def streams(num=50, **fields):
    return [make_record(scenario=summary.WORKER_KILL, is_migrated=True, stall_s=0.5, **fields) for _ in range(num)]


def test_streams_that_go_on_elsewhere_in_time_reach_both_goals():
    lost, stall = summary.worker_kill_rows([*streams(), make_record()], streams())
    assert (lost.ours, lost.holds, stall.ours, stall.holds) == (0, True, 0.5, True)


def test_a_wrong_token_or_a_long_stall_misses_them():
    bad = make_record(Verdict.WRONG_TOKENS, stall_s=2.1)
    rows = summary.worker_kill_rows([*streams(), bad], [*streams(), bad])
    assert [row.holds for row in rows] == [False, False]


def test_a_kill_that_hit_nothing_says_nothing():
    with pytest.raises(TooFew, match="49 streams"):
        summary.worker_kill_rows(streams(49), streams(49))
    unmoved = [make_record() for _ in range(50)]
    with pytest.raises(TooFew, match="none of the streams migrated"):
        summary.worker_kill_rows(unmoved, unmoved)


def asked(num, door="a", **fields):
    return [make_record(scenario=summary.GATEWAY_KILL, door=door, **fields) for _ in range(num)]


def test_one_retry_may_fail_for_one_in_a_hundred():
    retried = asked(10, first_code="UNAVAILABLE", tries=2)
    only_own, answered = summary.gateway_kill_rows([*asked(89, "b"), *retried, *asked(1, verdict=Verdict.LOST)], "a")
    assert (only_own.ours, only_own.holds, answered.ours, answered.holds) == (0, True, 99.0, True)
    assert not summary.gateway_kill_rows([*retried, *asked(1, verdict=Verdict.LOST)], "a")[1].holds


def test_a_failure_at_the_gateway_that_lives_is_strange():
    rows = summary.gateway_kill_rows([*asked(100), *asked(1, "b", first_code="UNAVAILABLE")], "a")
    assert (rows[0].ours, rows[0].holds) == (1, False)


def test_a_gateway_that_nobody_was_at_says_nothing():
    with pytest.raises(TooFew, match="it had none"):
        summary.gateway_kill_rows(asked(10), "a")


def test_the_report_has_a_line_for_each_scenario_and_a_sentence_for_each_failure():
    console = Console(width=200, record=True, file=io.StringIO())
    bad = make_record(Verdict.LOST, "roll-out", code="UNAVAILABLE", message="nobody", start="cold", first_s=None)
    mine = [make_record(), make_record(), bad]
    summary.print_lines(summary.lines_of(mine), console)
    said = console.export_text().splitlines()
    assert [line.split()[:4] for line in said[1:3]] == [["ladder", "2", "2", "0"], ["roll-out", "1", "0", "1"]]
    assert said[-1] == "3 requests, 1 lost, duplicated or wrong"
    assert summary.failures(mine) == ["roll-out: tiny at 10.000 s: lost, UNAVAILABLE after 0.500 s (nobody)"]
    assert summary.failures([bad] * 3, at_most=2)[-1] == "and 1 more"


def test_records_are_written_with_seed_and_commit_and_read_again(tmp_path):
    path = tmp_path / "records" / "ladder.json.gz"
    size = records.write(path, [make_record(is_migrated=True), make_record(first_s=None)], seed=7, notes={"cycles": 50})
    about, read = records.read(path)
    assert size == path.stat().st_size
    assert (about["seed"], about["notes"]) == (7, {"cycles": 50})
    assert about["commit"]
    told = [(r["first_ms"], r["end_ms"], r["late_ms"], r["migrated"]) for r in read]
    assert told == [(200, 500, 1, 1), (None, 500, 1, 0)]


def test_records_that_are_too_large_to_keep_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "MAX_BYTES", 10)
    with pytest.raises(ValueError, match="the limit is 10"):
        records.write(tmp_path / "ladder.json.gz", [make_record()], seed=7, notes={})
