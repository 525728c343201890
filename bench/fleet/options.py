"""The command line of the fleet benchmark. Knows no process and no cluster."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.results import RESULTS_DIR

COUNT = 1000
REST = 5000
MOST = 7000  # fake nodes have addresses for so many pods, those that a roll-out adds included
SAMPLES = 100
PARTS = ("burst", "rest", "change", "ready", "start", "failover")


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """How much to measure."""

    count: int = COUNT  # InferenceDeployments that are applied at once
    rest: int = REST  # InferenceDeployments that exist for everything after
    samples: int = SAMPLES  # repetitions of what is done one at a time; their 99th percentile counts
    only: tuple[str, ...] = PARTS
    out: Path | None = None  # where to write; None = bench/results if everything was measured, else nowhere

    @property
    def results_dir(self) -> Path | None:
        """Return where results are written; None for a short run, whose figures compare with nothing."""
        is_whole = (self.count, self.rest, self.only) == (COUNT, REST, PARTS) and self.samples >= SAMPLES
        return self.out or (RESULTS_DIR if is_whole else None)

    @property
    def population(self) -> int:
        """Return how many deployments there are after the burst."""
        return self.count if set(self.only) <= {"burst"} else max(self.count, self.rest)


def parse_options(doc: str | None, argv: Sequence[str] | None = None) -> FleetOptions:
    """Return the parsed options; `doc` is the help's text."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.fleet", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--count", type=_number, default=COUNT, help=f"deployments applied at once (default {COUNT})")
    add("--rest", type=_number, default=REST, help=f"deployments for everything after (default {REST})")
    add("--samples", type=_number, default=SAMPLES, help=f"repetitions one at a time (default {SAMPLES})")
    add("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts to measure (default: all)")
    add("--out", type=Path, help="folder for the results (default bench/results, and none for a shortened run)")
    flags = parser.parse_args(argv)
    only = tuple(part for part in PARTS if part in flags.only)
    return FleetOptions(flags.count, flags.rest, flags.samples, only, flags.out.resolve() if flags.out else None)


def _number(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer from 1 to {MOST}")
    return int(text)
