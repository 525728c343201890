"""Runs cases one after the other: a line for each with its seconds, a table at the end, and the rows as JSON.

The file is written after every case, so that what was found is there even if the next one kills the process.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import time
import traceback
from collections.abc import Callable, Sequence
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
    run: Callable[[Kit], list[Row]]
    needs_gpu: bool = False


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
            Case("parity", parity_case.run),
            Case("ahead", ahead_case.run),
            Case("bound", bound_case.run),
            Case("adapters", adapter_case.run),
            Case("drafts", draft_case.run),
            Case("quantized", quantized_case.run),
            Case("tasks", task_case.run),
            Case("swap", swap_case.run),
            Case("attention", attention_case.run),  # last: it compiles for minutes, and may use all that are left
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
    for case in program.cases:
        if only and case.name not in only:
            continue
        if case.needs_gpu and not kit.is_gpu:
            print(f"{case.name:12} left out: it needs a GPU", flush=True)
            continue
        outcomes.append(_run(case, kit, rows_must_hold=program.rows_must_hold))
        if folder is not None:
            rows = [row for outcome in outcomes for row in outcome.rows]
            write_results(program.result, rows, folder, where=f"{kit.name}, {machine()}")
    print_table([row for outcome in outcomes for row in outcome.rows], Console(width=TABLE_CHARS))
    return _judge(outcomes, rows_must_hold=program.rows_must_hold)


def _run(case: Case, kit: Kit, *, rows_must_hold: bool) -> Outcome:
    """Run one case, whatever it raises."""
    started_s = time.monotonic()
    try:
        outcome = Outcome(case.name, tuple(case.run(kit)))
        if not (kit.is_gpu or rows_must_hold):  # what a GPU shall reach is no goal of this machine
            outcome = replace(outcome, rows=tuple(replace(row, goal=None) for row in outcome.rows))
    except Exception as error:  # noqa: BLE001  the other cases shall still run
        traceback.print_exc()
        outcome = Outcome(case.name, (), f"{type(error).__name__}: {error}")
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
