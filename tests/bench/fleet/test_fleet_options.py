"""How much is measured, and when a result is written where everybody looks."""

from __future__ import annotations

import pytest

from bench.fleet.options import MOST, PARTS, parse_options
from bench.results import RESULTS_DIR


def test_a_whole_run_is_written_beside_the_other_results():
    assert parse_options("", []).results_dir == RESULTS_DIR


@pytest.mark.parametrize("flags", [["--count", "50"], ["--rest", "200"], ["--only", "burst"], ["--samples", "5"]])
def test_a_shortened_run_is_written_nowhere_unless_told(flags, tmp_path):
    assert parse_options("", flags).results_dir is None
    assert parse_options("", [*flags, "--out", str(tmp_path)]).results_dir == tmp_path


def test_parts_run_in_their_order_whatever_the_order_they_are_named_in():
    assert parse_options("", ["--only", "failover", "rest"]).only == ("rest", "failover")
    assert parse_options("", []).only == PARTS


def test_a_burst_alone_needs_no_more_deployments_than_its_own():
    assert parse_options("", ["--only", "burst", "--count", "50"]).population == 50
    assert parse_options("", ["--only", "rest", "--count", "50", "--rest", "200"]).population == 200
    assert parse_options("", ["--count", "300", "--rest", "200"]).population == 300


@pytest.mark.parametrize("text", ["0", "-1", "1.5", str(MOST + 1), "many"])
def test_a_number_out_of_bounds_is_named_with_the_bounds(text, capsys):
    with pytest.raises(SystemExit):
        parse_options("", [f"--rest={text}"])
    message = capsys.readouterr().err
    assert "--rest" in message
    assert f"{text!r} is not an integer from 1 to {MOST}" in message
