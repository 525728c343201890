"""Runs cases: a line for each with its seconds, a table at the end, and the rows as JSON.

On a GPU those that measure it come first, one after the other, and then all that only ask what is computed, each in a
process of its own: a lent machine has more cores than time. The file is written after every case, so that what was
found is there even if the next one kills the process.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from transformers.utils import logging

from bench.results import RESULTS_DIR, Row, machine, print_table, write_results
from tests.gpu import (
    adapter_case,
    ahead_case,
    attention_case,
    bench_parts,
    bound_case,
    draft_case,
    parity_case,
    profile_case,
    quantized_case,
    sleep_cases,
    spike_case,
    swap_case,
    task_case,
)
from tests.gpu.device_kit import Kit, find_kit

LIMIT_S = 540  # lent machines take a command's end for granted after ten minutes
TABLE_CHARS = 130


@dataclass(frozen=True)
class Case:
    """One question to the device."""

    name: str
    run: Callable[[Kit], Iterable[Row]]
    needs_gpu: bool = False
    is_apart: bool = False  # others may use the device meanwhile: it measures neither memory nor time


@dataclass(frozen=True)
class Program:
    """What runs, and where its rows go."""

    result: str  # bench/results/RESULT.json
    cases: tuple[Case, ...]
    rows_must_hold: bool  # a goal that is missed is an error; else it is only told


PROGRAMS = {
    "test": Program(
        "gpu-test",
        (
            Case("spike", spike_case.run),
            Case("cycles", sleep_cases.cycles),
            Case("crowded", sleep_cases.neighbour_takes_all),
            Case("profile", profile_case.run, needs_gpu=True),
            Case("parity", parity_case.run, is_apart=True),
            Case("ahead", ahead_case.run, is_apart=True),
            Case("bound", bound_case.run, is_apart=True),
            Case("adapters", adapter_case.run, is_apart=True),
            Case("drafts", draft_case.run, is_apart=True),
            Case("quantized", quantized_case.run, is_apart=True),
            Case("tasks", task_case.run, is_apart=True),
            Case("swap", swap_case.run, is_apart=True),
            Case("attention", attention_case.run, is_apart=True),
        ),
        rows_must_hold=True,
    ),
    "bench": Program("gpu", (Case("large-model", bench_parts.run),), rows_must_hold=False),
}

CHILDREN = {
    "loaded-worker": profile_case.be_loaded_worker,
    "large-model": bench_parts.be_model_writer,
    "attention-share": attention_case.be_share,
    "parity-share": parity_case.be_share,
}


@dataclass(frozen=True)
class Outcome:
    """What became of one case."""

    name: str
    rows: tuple[Row, ...]
    error: str = ""  # "" = it ran to its end


def main(argv: Sequence[str]) -> int:
    """Be one of the programs; return the exit status."""
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        if argv and argv[0] in CHILDREN:
            return CHILDREN[argv[0]](argv[1])
        flags = _parse(argv)
        return run_program(PROGRAMS[flags.program], find_kit(), only=flags.only, out=flags.out)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/gpu", description=__doc__)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--only", action="append", default=[], metavar="CASE", help="only this case; repeatable")
    parser.add_argument("--out", type=Path, help="folder for the JSON (default: bench/results on a GPU, else none)")
    flags = parser.parse_args(argv)
    known = [case.name for case in PROGRAMS[flags.program].cases]
    for name in flags.only:
        if name not in known:
            parser.error(f"CASE is {name!r}; known are {', '.join(known)}")
    return flags


def run_program(program: Program, kit: Kit, *, only: Sequence[str] = (), out: Path | None = None) -> int:
    """Run the cases, write and print their rows; return 0 if all is well, else 1."""
    beside = "" if kit.is_gpu else "; there is no GPU: its cases are left out, figures say nothing of speed"
    print(f"on {kit.name}{beside}", flush=True)
    folder = out or (RESULTS_DIR if kit.is_gpu and not only else None)
    outcomes: list[Outcome] = []
    for outcome in _outcomes(program, kit, only):
        outcomes.append(outcome)
        if folder is not None:
            rows = [row for outcome in outcomes for row in outcome.rows]
            write_results(program.result, rows, folder, where=f"{kit.name}, {machine()}")
    print_table([row for outcome in outcomes for row in outcome.rows], Console(width=TABLE_CHARS))
    return _judge(outcomes, rows_must_hold=program.rows_must_hold)


def _outcomes(program: Program, kit: Kit, only: Sequence[str]) -> Iterator[Outcome]:
    cases = []
    for case in program.cases:
        if case.needs_gpu and not kit.is_gpu and (not only or case.name in only):
            print(f"{case.name:12} left out: it needs a GPU", flush=True)
        elif not only or case.name in only:
            cases.append(case)
    apart = [case for case in cases if case.is_apart and kit.is_gpu and not only]
    for case in cases:
        if case not in apart:
            yield _run(case, kit, rows_must_hold=program.rows_must_hold)
    yield from run_apart(program.result, apart)


def run_apart(result: str, cases: Sequence[Case]) -> Iterator[Outcome]:
    """Run cases of the program with this result side by side; yield what becomes of each, also of one that dies."""
    spawn = multiprocessing.get_context("spawn")
    processes = {case.name: ProcessPoolExecutor(1, mp_context=spawn) for case in cases}
    waiting = {process.submit(_be_case, result, name): name for name, process in processes.items()}
    for done in as_completed(waiting):
        error = done.exception()
        yield done.result() if error is None else Outcome(waiting[done], (), f"{type(error).__name__}: {error}")
    for process in processes.values():
        process.shutdown()


def _be_case(result: str, name: str) -> Outcome:
    """Run one case in this process."""
    (program,) = (program for program in PROGRAMS.values() if program.result == result)
    (case,) = (case for case in program.cases if case.name == name)
    return _run(case, find_kit(), rows_must_hold=program.rows_must_hold)


def _run(case: Case, kit: Kit, *, rows_must_hold: bool) -> Outcome:
    """Run one case, whatever it raises; rows that came before that are kept."""
    started_s, words = time.monotonic(), ""
    rows: list[Row] = []
    has_goals = kit.is_gpu or rows_must_hold  # what a GPU shall reach in speed is no goal of this machine
    try:
        rows.extend(row if has_goals else replace(row, goal=None) for row in case.run(kit))
    except Exception as error:  # noqa: BLE001  the other cases shall still run
        traceback.print_exc()
        words = f"{type(error).__name__}: {error}"
    outcome = Outcome(case.name, tuple(rows), words)
    verdict = outcome.error or ("as it must be" if not missed(outcome) else "; ".join(missed(outcome)))
    print(f"{case.name:12} {time.monotonic() - started_s:7.1f} s  {verdict}", flush=True)
    gc.collect()
    kit.tidy()
    return outcome


def missed(outcome: Outcome) -> list[str]:
    """Return the rows whose goals are missed."""
    return [f"{row.what} is {row.ours:g} {row.unit}, goal {row.goal}" for row in outcome.rows if row.holds is False]


def _judge(outcomes: Sequence[Outcome], *, rows_must_hold: bool) -> int:
    failed = [outcome.name for outcome in outcomes if outcome.error or (rows_must_hold and missed(outcome))]
    print(f"{len(outcomes)} cases, failed: {', '.join(failed) or 'none'}", flush=True)
    return 1 if failed else 0
