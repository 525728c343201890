"""What a result file says, and when a goal holds."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console

from bench.results import (
    AtLeast,
    AtMost,
    RatioAtLeast,
    RatioAtMost,
    Row,
    commit,
    describe_machine,
    print_table,
    write_results,
)


@pytest.mark.parametrize(
    ("goal", "ours", "peer", "holds"),
    [
        (RatioAtLeast(2), 200.0, 100.0, True),
        (RatioAtLeast(2), 199.0, 100.0, False),
        (RatioAtLeast(1), 64, 64, True),
        (RatioAtMost(1.2), 120.0, 100.0, True),
        (RatioAtMost(1.2), 120.1, 100.0, False),
        (AtMost(60), 60.0, None, True),
        (AtMost(60), 60.1, None, False),
        (AtMost(60), 61.0, 100.0, False),
        (AtLeast(3), 3.0, None, True),
        (AtLeast(3), 2.9, None, False),
    ],
)
def test_the_writer_decides_whether_a_goal_holds(goal, ours, peer, holds):
    assert Row("something", ours, "s", peer, goal).holds is holds


@pytest.mark.parametrize("goal", [RatioAtLeast(2), RatioAtMost(2)])
def test_a_ratio_without_a_peer_can_not_be_judged(goal):
    with pytest.raises(ValueError, match=f"{goal}: the row has no peer"):
        _ = Row("something", 1.0, "s", goal=goal).holds


def test_a_row_without_a_goal_is_neither_good_nor_bad():
    assert Row("something", 1.0, "s", 2.0).to_json() == {
        "what": "something",
        "ours": 1.0,
        "peer": 2.0,
        "ratio": 0.5,
        "unit": "s",
        "goal": None,
        "holds": None,
    }


@pytest.mark.parametrize("peer", [None, 0.0])
def test_a_row_without_a_peer_or_with_an_idle_one_has_no_ratio(peer):
    assert Row("something", 1.0, "s", peer).ratio is None


def test_verdict_and_ratio_speak_of_the_figures_that_are_written():
    row = Row("something", 1999.96, "tokens/s", 1000.04, RatioAtLeast(2))
    assert (row.ours, row.peer, row.ratio, row.holds) == (2000.0, 1000.0, 2.0, True)


@pytest.mark.parametrize("figure", [float("nan"), float("inf")])
@pytest.mark.parametrize("whose", ["ours", "peer"])
def test_a_figure_that_is_no_number_is_refused(whose, figure):
    with pytest.raises(ValueError, match=rf"speed: {whose} is {figure}; it must be a finite number"):
        Row("speed", **{"ours": 1.0, "peer": 1.0, whose: figure}, unit="s")


def test_the_file_has_what_the_format_names(tmp_path):
    rows = [Row("speed", 3.0, "tokens/s", 1.0, RatioAtLeast(2)), Row("time", 7.0, "s", goal=AtMost(6))]
    path = write_results("throughput", rows, tmp_path / "results")
    content = json.loads(path.read_text("utf-8"))
    assert path.name == "throughput.json"
    assert list(content) == ["machine", "commit", "date", "rows"]
    assert [list(row) for row in content["rows"]] == [["what", "ours", "peer", "ratio", "unit", "goal", "holds"]] * 2
    assert [(row["goal"], row["holds"]) for row in content["rows"]] == [("ratio ≥ 2", True), ("≤ 6", False)]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", content["date"])


def test_the_machine_is_described_without_its_name():
    cpu_info = "processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz \n\nprocessor\t: 1\nmodel name\t: Fast CPU @ 3 GHz\n"
    memory_info = "MemTotal:       25165824 kB\nMemFree:         1000 kB\n"
    assert describe_machine(cpu_info, memory_info, 2) == "Fast CPU @ 3 GHz, 2 cores, 24 GiB"
    cpu_info += "flags\t\t: fpu avx2 avx512f avx512_bf16\n"
    assert describe_machine(cpu_info, memory_info, 2) == "Fast CPU @ 3 GHz with avx512_bf16, 2 cores, 24 GiB"


def test_a_machine_that_does_not_say_what_it_is_is_unknown():
    assert describe_machine("", "", 1) == "unknown processor, 1 cores, unknown memory"


def test_the_commit_is_named():
    assert re.fullmatch(r"[0-9a-f]{12}( with changes)?|unknown", commit())


def test_the_table_shows_every_row():
    console = Console(width=120, record=True, file=io.StringIO())
    rows = [Row("speed", 3123.0, "tokens/s", 1000.0, RatioAtLeast(2)), Row("time", 7.0, "s", goal=AtMost(6))]
    print_table([*rows, Row("more", 2.0, "s")], console)
    lines = [line.split() for line in console.export_text().splitlines()]
    assert lines[1:] == [
        ["speed", "3,123", "1,000", "3.123", "tokens/s", "ratio", "≥", "2", "yes"],
        ["time", "7", "s", "≤", "6", "no"],
        ["more", "2", "s"],
    ]


def test_a_machine_without_git_measures_an_unknown_commit(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit() == "unknown"


def test_the_result_can_name_another_machine_than_this_one(tmp_path):
    path = write_results("some", [], tmp_path, where="a large one")
    assert json.loads(path.read_text("utf-8"))["machine"] == "a large one"


def test_rows_of_the_prober_outlive_another_run_of_the_benchmark(tmp_path):
    write_results("gateway", [Row("SIGKILL of one of two gateways", 99.5, "%"), Row("old", 1.0, "ms")], tmp_path)
    path = write_results("gateway", [Row("new", 2.0, "ms")], tmp_path)
    path = write_results("gateway", [Row("new", 3.0, "ms")], tmp_path)
    rows = json.loads(path.read_text("utf-8"))["rows"]
    assert [(row["what"], row["ours"]) for row in rows] == [("new", 3.0), ("SIGKILL of one of two gateways", 99.5)]
