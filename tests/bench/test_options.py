"""The command line that the benchmarks share."""

from __future__ import annotations

import json
import signal

import pytest

from bench.options import Options, main, make_parser, run, to_options
from bench.peer_env import NoPeer
from bench.results import RESULTS_DIR, Row


def parse(*argv):
    return to_options(make_parser("bench.throughput", "What it measures.").parse_args(argv))


def test_without_flags_everything_is_measured_and_written():
    assert parse() == Options()
    assert parse().results_dir == RESULTS_DIR


@pytest.mark.parametrize("flags", [["--models", "tiny"], ["--count", "4"], ["--reps", "1"], ["--threads", "1"]])
def test_a_shortened_run_writes_nothing(flags):
    assert parse(*flags).results_dir is None


def test_more_repetitions_are_as_good():
    assert parse("--reps", "5").results_dir == RESULTS_DIR


def test_a_shortened_run_writes_where_it_is_told(tmp_path):
    assert parse("--count", "4", "--out", str(tmp_path)).results_dir == tmp_path


@pytest.mark.parametrize("flag", ["--reps", "--count"])
@pytest.mark.parametrize("value", ["0", "-1", "x", ""])
def test_a_bad_number_names_flag_and_value(flag, value, capsys):
    with pytest.raises(SystemExit):
        parse(f"{flag}={value}")
    assert f"argument {flag}: {value!r} is not an integer of at least 1" in capsys.readouterr().err


def test_an_unknown_model_names_the_known_ones(capsys):
    with pytest.raises(SystemExit):
        parse("--models", "huge")
    assert "tiny" in capsys.readouterr().err


def test_help_teaches_what_is_measured(capsys):
    with pytest.raises(SystemExit):
        parse("--help")
    assert "What it measures." in capsys.readouterr().out


def test_a_benchmark_s_rows_are_written_under_its_name(tmp_path):
    from rich.console import Console

    rows = [Row("speed", 1.0, "tokens/s")]
    options = Options(out=tmp_path)
    assert run("latency", lambda *_: rows, options, Console(quiet=True)) == rows
    assert (tmp_path / "latency.json").is_file()


def test_a_part_of_a_whole_run_is_written_where_it_is_put_beside_the_rest():
    assert parse("--models", "q05", "--merge").results_dir == RESULTS_DIR
    assert parse("--peers", "vllm", "--merge").results_dir == RESULTS_DIR
    assert parse("--count", "4", "--merge").results_dir is None
    assert parse("--ways", "bfloat16", "--merge").results_dir is None


def test_merged_rows_replace_those_that_say_the_same(tmp_path):
    from rich.console import Console

    def measured(speed, *whats):
        return lambda *_: [Row(what, speed, "tokens/s") for what in whats]

    console = Console(quiet=True)
    run("decode", measured(1.0, "tiny", "small"), Options(out=tmp_path), console)
    run("decode", measured(2.0, "small"), Options(out=tmp_path, merge=True), console)
    rows = json.loads((tmp_path / "decode.json").read_text())["rows"]
    assert {row["what"]: row["ours"] for row in rows} == {"tiny": 1.0, "small": 2.0}


@pytest.fixture
def sigterm():
    """Keep what this process does about SIGTERM, which a benchmark's program changes."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("sigterm")
def test_a_benchmark_that_cannot_do_without_vllm_ends_with_a_sentence():
    """And without a traceback."""

    def measure(*_):
        raise NoPeer("vLLM is not there")

    with pytest.raises(SystemExit, match="vLLM is not there"):
        main("structured", "", measure, [])
