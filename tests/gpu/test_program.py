"""The programs for a GPU, on a machine that has none: what they say, write and answer."""

import json
import os
import subprocess
import sys

import pytest

from bench.results import AtLeast, AtMost, Row
from tests.gpu.attention_case import run_until, to_rows
from tests.gpu.attention_cases import Result
from tests.gpu.device_kit import FakeKit, NeighbourProcess
from tests.gpu.program import PROGRAMS, Case, Outcome, Program, missed, run_apart, run_program
from tools.bootstrap import ROOT

GOOD = Case("good", lambda _: [Row("one", 1, "", goal=AtLeast(1))])
BAD = Case("bad", lambda _: [Row("two", 2, "bytes", goal=AtMost(1))])
BROKEN = Case("broken", lambda _: 1 / 0)
ELSEWHERE = Case("elsewhere", lambda _: 1 / 0, needs_gpu=True)


class Gpu(FakeKit):
    """A kit that passes for a GPU."""

    name, is_gpu = "H9000", True


def run(*cases, kit=None, rows_must_hold=True, **options):
    return run_program(Program("gpu-fake", cases, rows_must_hold=rows_must_hold), kit or FakeKit(), **options)


def test_cases_that_hold_end_with_zero(capsys):
    assert run(GOOD) == 0
    assert "good" in capsys.readouterr().out


@pytest.mark.parametrize("case", [BAD, BROKEN])
def test_a_case_that_fails_ends_with_one_and_the_others_run_all_the_same(case, capsys):
    assert run(case, GOOD) == 1
    told = capsys.readouterr().out
    assert f"2 cases, failed: {case.name}\n" in told
    assert "as it must be" in told


def test_rows_that_came_before_an_error_are_kept(tmp_path):
    def rows(_):
        yield Row("before", 1, "")
        raise ValueError("after")

    assert run(Case("half", rows), out=tmp_path) == 1
    assert [row["what"] for row in json.loads((tmp_path / "gpu-fake.json").read_text())["rows"]] == ["before"]


def test_a_missed_goal_is_told_in_words():
    assert missed(Outcome("bad", tuple(BAD.run(None)))) == ["two is 2 bytes, goal ≤ 1"]


def test_a_benchmarks_missed_goal_is_no_error_but_what_it_raises_is(tmp_path):
    assert run(BAD, kit=Gpu(), rows_must_hold=False, out=tmp_path) == 0
    assert run(BROKEN, kit=Gpu(), rows_must_hold=False, out=tmp_path) == 1


def test_without_a_gpu_a_benchmark_has_no_goals(tmp_path):
    run(BAD, rows_must_hold=False, out=tmp_path)
    assert [row["goal"] for row in json.loads((tmp_path / "gpu-fake.json").read_text())["rows"]] == [None]


def test_without_a_gpu_the_program_says_so_and_leaves_its_cases_out(capsys):
    assert run(ELSEWHERE, GOOD) == 0
    told = capsys.readouterr().out
    assert "there is no GPU" in told
    assert "elsewhere    left out: it needs a GPU" in told


def test_the_result_names_the_gpu_and_stands_there_after_every_case(tmp_path):
    def look(_):
        return [Row("rows before", len(json.loads((tmp_path / "gpu-fake.json").read_text())["rows"]), "")]

    assert run(GOOD, Case("look", look), kit=Gpu(), out=tmp_path) == 0
    written = json.loads((tmp_path / "gpu-fake.json").read_text())
    assert written["machine"].startswith("H9000, ")
    assert [(row["what"], row["ours"]) for row in written["rows"]] == [("one", 1), ("rows before", 1)]


def test_only_the_named_cases_run(capsys):
    assert run(BROKEN, GOOD, only=["good"]) == 0
    assert "1 cases" in capsys.readouterr().out


def test_every_case_of_attention_that_fails_is_printed_and_counted(capsys):
    results = [
        Result("a", "x", None),
        Result("a", "y", "wrong"),
        Result("a", "z", None, "too old"),
        Result("b", "x", None),
    ]
    rows = {row.what: (row.ours, row.holds) for row in to_rows(results)}
    assert rows == {"attention a: wrong of 2, 1 not its own": (1, False), "attention b: wrong of 1": (0, True)}
    assert "a y: wrong" in capsys.readouterr().out


def test_attention_stops_in_time_and_counts_each_result_once():
    times = iter(range(100))
    bits = Result("a", "independence", None)
    results, num_left_out = run_until(
        2, lambda case: [Result("a", case, None), bits], list("xyz"), clock=lambda: next(times)
    )
    assert results == [Result("a", "x", None), bits, Result("a", "y", None)]
    assert num_left_out == 1


@pytest.mark.timeout(300)  # each process imports all that a GPU would run, on a machine that may be busy
@pytest.mark.slow
def test_cases_run_apart_and_one_that_can_not_hinders_no_other():
    outcomes = {
        outcome.name: outcome for outcome in run_apart("gpu-test", [Case("spike", None), Case("unknown", None)])
    }
    assert missed(outcomes["spike"]) == []
    assert outcomes["spike"].rows
    assert outcomes["unknown"].error.startswith("ValueError: not enough values")


def test_the_programs_have_the_cases_that_the_documents_name():
    text = (ROOT / "docs/design/gpu.md").read_text("utf-8")
    assert [case.name for program in PROGRAMS.values() for case in program.cases if f"`{case.name}`" not in text] == []


@pytest.mark.timeout(300)  # it imports all that a GPU would run, on a machine that may be busy
def test_the_program_starts_by_its_path_beside_packages_of_the_same_names(tmp_path):
    """A regular package is found before a folder without __init__, wherever it lies."""
    for name in ("tests", "tools", "bench"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "gpu"), "test", "--only", "spike", "--out", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "there is no GPU" in done.stdout
    assert json.loads((tmp_path / "gpu-test.json").read_text())["rows"]


DRIVER = """
class CUresult:
    CUDA_SUCCESS, OUT_OF_MEMORY = range(2)
def _done(*values): return (CUresult.CUDA_SUCCESS, *values)
def cuInit(flags): return _done()
def cuDeviceGet(ordinal): return _done(ordinal)
def cuDevicePrimaryCtxRetain(device): return _done("context")
def cuCtxSetCurrent(context): return _done()
def cuMemAlloc(size): return _done(size) if size < 1000 else (CUresult.OUT_OF_MEMORY, 0)
def cuMemFree(pointer): return _done()
"""


@pytest.fixture
def neighbour(tmp_path):
    package = tmp_path / "cuda" / "bindings"
    package.mkdir(parents=True)
    for name in ("cuda", "cuda/bindings"):
        (tmp_path / name / "__init__.py").write_text("")
    (package / "driver.py").write_text(DRIVER)
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "gpu" / "neighbour.py")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield NeighbourProcess(process)
    process.stdin.close()
    assert process.wait(timeout=30) == 0
    process.stdout.close()


def test_the_neighbour_takes_and_gives_what_it_is_told(neighbour):
    neighbour.take(999)
    neighbour.give()
    neighbour.give()
    neighbour.take(1)


def test_the_neighbour_says_why_it_could_not_take(neighbour):
    with pytest.raises(RuntimeError, match="the neighbour says cuMemAlloc: 1"):
        neighbour.take(1000)
