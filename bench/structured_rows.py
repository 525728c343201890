"""What bound rows cost beside free ones, and what forced tokens save: `python -m bench.structured_rows --merge`.

    rows       64 bound rows beside 64 free ones, 63 free and a bound one beside 64 free ones, one beside one
    forced     an object of 60 required fields beside free text of as many passes, one at a time

Sides take turns and the median of the pairs' ratios counts: what disturbs one disturbs the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from rich.console import Console

from bench.helpers import Helper
from bench.models import ensure_model
from bench.options import Options, main
from bench.results import RatioAtLeast, Row
from bench.structured_cases import ENDLESS, bound_by, sixty_fields
from bench.structured_hostile import ends_of
from bench.structured_probe import Ask, Asked, Said
from bench.workload import make_workload

PROBE = "bench.structured_probe"
NUM_SEQS = 64
DECODED = 32  # tokens of each sequence
PAIRS = 2  # for each of the repetitions asked for
SPEED_UNIT = "output tokens/s"


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    model = ensure_model("small", "bf16")
    with Helper(PROBE, str(model), str(options.threads or len(os.sched_getaffinity(0)))) as probe:
        return list(_speed(probe, ends_of(model), PAIRS * options.reps, console))


def _speed(probe: Helper, ends: tuple[int, ...], num_pairs: int, console: Console) -> Iterator[Row]:
    prompts = [request.prompt for request in make_workload("W4", vocab_size=4096, count=NUM_SEQS).requests]
    endless, sixty = bound_by(ENDLESS, ends), bound_by(sixty_fields(), ends)

    def rows(num_seqs: int, num_bound: int) -> Ask:
        grammars = [endless] * num_bound + [None] * (num_seqs - num_bound)
        pairs = zip(prompts, grammars, strict=False)
        return Ask([Asked(prompt, DECODED, grammar, seed=seed) for seed, (prompt, grammar) in enumerate(pairs)])

    fields = Ask([Asked(prompts[0], 1_900, sixty)])
    cases = (
        ("64 bound rows beside 64 free ones", rows(64, 64), rows(64, 0), RatioAtLeast(0.95)),
        ("63 free rows and a bound one beside 64 free ones", rows(64, 1), rows(64, 0), None),
        ("one bound row beside one free one", rows(1, 1), rows(1, 0), RatioAtLeast(0.97)),
        ("60 fields, batch 1, beside free text", fields, Ask([Asked(prompts[0], 150)]), RatioAtLeast(1.6)),
    )
    for what, bound, free, goal in cases:
        pairs = list(_take_turns(probe, bound, free, num_pairs))
        ours, peer = _middle(pairs)
        console.print(f"  {what}: " + ", ".join(f"{ours / peer:.2f}" for ours, peer in pairs), highlight=False)
        yield Row(f"{what}, small bf16", ours, SPEED_UNIT, peer, goal)


def _take_turns(probe: Helper, bound: Ask, free: Ask, count: int) -> Iterator[tuple[float, float]]:
    for number in range(count + 1):
        sides = (bound, free) if number % 2 else (free, bound)
        said = {id(side): probe.ask(side, Said).tokens_per_s for side in sides}
        if number:  # the first warms up
            yield said[id(bound)], said[id(free)]


def _middle(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the pair with the middle ratio."""
    return sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]


if __name__ == "__main__":
    main("structured", __doc__, measure)
