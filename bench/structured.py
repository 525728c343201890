"""Bound answers: validity over generated schemas, tokens per second beside free text, hostile grammars, kills.

    validity   `bench.structured_validity`: 1,000 generated schemas on three models: do answers that end validate
    rows       `bench.structured_rows`: bound rows beside free ones, an object of 60 fields beside free text
    hostile    `bench.structured_hostile`: seconds until the front refuses, and what neighbours notice
    kills      64 streams whose engine is cut off after random passes and resumed in another, 200 times

Sampling at temperature 1 with seeds. `bench.structured_sets` compares accepted tokens with xgrammar's,
`bench.structured_rival` an object of 60 fields with vLLM, `bench.structured_kills` kills real workers,
`bench.structured_parsers` cuts answers of each family in random pieces.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
from rich.console import Console
from tokenizers import Tokenizer

from bench.helpers import Helper
from bench.models import ensure_model
from bench.options import Options, main
from bench.results import AtMost, Row
from bench.structured_hostile import ends_of
from bench.structured_hostile import measure as measure_hostile
from bench.structured_probe import Ask, Asked, Said
from bench.structured_rows import measure as measure_rows
from bench.structured_validity import PROBE, bound, is_valid
from bench.structured_validity import measure as measure_validity

NUM_KILLS, NUM_KILLED = 200, 64


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    threads, drawn = str(options.threads or len(os.sched_getaffinity(0))), ensure_model("tiny", "bf16")
    rows = measure_validity(options, console)
    with ExitStack() as stack:
        probes = [stack.enter_context(Helper(PROBE, str(drawn), threads)) for _ in range(2)]
        rows += _kills(drawn, probes, console)
    return [*rows, *measure_rows(options, console), *measure_hostile(options, console)]


def _kills(model: Path, probes: Sequence[Helper], console: Console) -> Iterator[Row]:
    """Yield how many streams said something else than one that nobody killed, and how many are invalid."""
    ends, draw, kills, wrong, invalid, streams = ends_of(model), random.Random(7), 0, 0, 0, 0
    text_of = Tokenizer.from_file(str(model / "tokenizer.json")).decode
    while kills < NUM_KILLS:
        asked = {number: bound(number, ends) for number in range(streams, streams + NUM_KILLED)}
        streams += NUM_KILLED
        whole = probes[0].ask(Ask([*asked.values()]), Said)
        said, its_kills = _kill_and_resume(asked, probes, draw)
        kills += its_kills
        for number, tokens, reason in zip(asked, whole.tokens, whole.finish_reasons, strict=True):
            wrong += said[number] != tokens
            invalid += reason == "stop" and not is_valid(text_of(said[number][:-1], skip_special_tokens=False), number)
    what = f"{streams} streams, {NUM_KILLED} at a time, killed {kills} times"
    console.print(f"  {what}", highlight=False)
    yield Row(f"{what}: lost or with other tokens", wrong, "streams", goal=AtMost(0))
    yield Row(f"{what}: invalid", invalid, "streams", goal=AtMost(0))


def _kill_and_resume(
    asked: Mapping[int, Asked], probes: Sequence[Helper], draw: random.Random
) -> tuple[dict[int, list[int]], int]:
    """Have engines take turns until all have ended; return what was said, and how often streams were cut off."""
    said: dict[int, list[int]] = {number: [] for number in asked}
    open_ones, kills = [*asked], 0
    while open_ones:
        resumed = [msgspec.structs.replace(asked[number], said=said[number]) for number in open_ones]
        part = probes[kills % len(probes)].ask(Ask(resumed, draw.randint(1, 6)), Said)
        for number, tokens in zip(open_ones, part.tokens, strict=True):
            said[number] = said[number] + tokens
        open_ones = [number for number, why in zip(open_ones, part.finish_reasons, strict=True) if not why]
        kills += bool(open_ones)
    return said, kills


if __name__ == "__main__":
    main("structured", __doc__, measure)
