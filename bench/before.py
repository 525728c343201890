"""Our engine beside that of another checkout, in turns: `python -m bench.before --checkout DIRECTORY --models small`.

W1 is 64 requests at once, W2 one alone, in bfloat16 and in process. The other checkout needs its environment
(`make install` there). What exists must not get slower: both ratios of time stay within 2 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rich.console import Console

from bench.contest import Figure
from bench.helpers import Helper, environment
from bench.models import ensure_model
from bench.options import Options, end_children_on_sigterm, make_console, make_parser, run, to_options
from bench.race import OURS, Laps, Race
from bench.replies import tokens_per_s, tpot_ms, ttft_ms
from bench.results import RatioAtLeast, RatioAtMost, Row, print_table

BEFORE = "before"
SLACK = 0.02  # of a ratio


def measure(checkout: Path, options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    return [row for name in options.models for row in _rows(name, checkout, options, console)]


def _rows(name: str, checkout: Path, options: Options, console: Console) -> Iterator[Row]:
    model, threads = str(ensure_model(name, "bf16")), str(options.threads)
    with ExitStack() as stack:
        now = Helper("bench.ours", model, threads, rests=True)
        before = Helper(
            "bench.ours",
            model,
            threads,
            rests=True,
            python=checkout / ".venv" / "bin" / "python",
            env={**environment(checkout), "PYTHONSAFEPATH": "1"},  # not the packages of this folder
        )
        sides = {OURS: stack.enter_context(now), BEFORE: stack.enter_context(before)}
        contest = Race(name, sides, options, console)
        many, alone = contest.run("W1"), contest.run("W2")
    yield Row(f"W1, {name}", *_both(many, tokens_per_s, "tokens/s"), goal=RatioAtLeast(1 - SLACK))
    yield Row(f"time to first token W2, {name}", *_both(alone, ttft_ms, "ms"), goal=RatioAtMost(1 + SLACK))
    yield Row(f"time per output token W2, {name}", *_both(alone, tpot_ms, "ms"), goal=RatioAtMost(1 + SLACK))


def _both(laps: Laps, figure: Figure, unit: str) -> tuple[float, str, float]:
    return laps.median(OURS, figure), unit, laps.median(BEFORE, figure)


if __name__ == "__main__":
    end_children_on_sigterm()
    parser = make_parser("bench.before", __doc__)
    parser.add_argument("--checkout", type=Path, required=True, metavar="DIRECTORY", help="of the other commit")
    flags = parser.parse_args()
    terminal = make_console()
    measured = partial(measure, flags.checkout.resolve())
    print_table(run("before", measured, to_options(flags), terminal), terminal)
