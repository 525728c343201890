"""Whether answers in pieces are told apart as whole ones are: `python -m bench.structured_parsers --merge`.

Each family's corpus, cut in 10,000 random ways; of each cut also whether every call's arguments are a JSON object.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from rich.console import Console

from bench.options import Options, main
from bench.results import AtMost, Row
from tests.worker.front.answers.corpus import SAMPLES, Said, Sample, collected
from tests.worker.front.answers.test_families import FAMILIES, NUM_SPLITS_OF_A_FAMILY, pieces_of


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    count, other, broken = options.count or NUM_SPLITS_OF_A_FAMILY, 0, 0
    for family in FAMILIES:
        samples = [sample for sample in SAMPLES.values() if family in {sample.tools, sample.reasoning}]
        differ, are_broken = _splits(samples, random.Random(family), count)
        other, broken = other + differ, broken + are_broken
        console.print(f"  {family}: {differ} of {count} differ, {are_broken} calls without an object", highlight=False)
    what = f"parsers of {len(FAMILIES)} families, {count} random splits of each corpus"
    return [
        Row(f"{what}: told apart otherwise than whole", other, "answers", goal=AtMost(0)),
        Row(f"{what}: arguments that are no JSON object", broken, "calls", goal=AtMost(0)),
    ]


def _splits(samples: Sequence[Sample], rng: random.Random, count: int) -> tuple[int, int]:
    """Return how many answers in pieces say something else than whole ones, and how many calls have no object."""
    other = broken = 0
    for number in range(count):
        sample = samples[number % len(samples)]
        said = _said(sample, pieces_of(sample.text, rng))
        other += said != sample.says
        broken += sum(not isinstance(json.loads(arguments), dict) for _, arguments in said.calls)
    return other, broken


def _said(sample: Sample, pieces: Sequence[str]) -> Said:
    parser = sample.parser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return collected([*events, *parser.finish()])


if __name__ == "__main__":
    main("structured", __doc__, measure)
