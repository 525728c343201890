"""Bound answers: validity over generated schemas, tokens per second beside free text, hostile grammars, kills.

    validity   1,000 generated schemas on the small trained model and on random weights: do answers that end validate
    rows       `bench.structured_rows`: bound rows beside free ones, an object of 60 fields beside free text
    hostile    `bench.structured_hostile`: seconds until the front refuses, and what neighbours notice
    kills      64 streams whose engine is cut off after random passes and resumed in another, 200 times

Sampling at temperature 1 with seeds. `bench.structured_sets` compares accepted
tokens with xgrammar's. vLLM is not measured.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import msgspec
from rich.console import Console
from tokenizers import Tokenizer

from bench.helpers import Helper
from bench.models import ensure_model
from bench.options import Options, main
from bench.results import AtLeast, AtMost, Row
from bench.structured_cases import bound_by, make_schema
from bench.structured_hostile import ends_of
from bench.structured_hostile import measure as measure_hostile
from bench.structured_probe import Ask, Asked, Said
from bench.structured_rows import measure as measure_rows
from tools.train_model import Recipe
from tools.train_model import model_dir as trained_dir

PROBE = "bench.structured_probe"
NUM_SCHEMAS, NUM_SEQS, NUM_KILLS, NUM_KILLED = 1_000, 64, 200, 64
MOST_TOKENS = 300


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    threads = str(options.threads or len(os.sched_getaffinity(0)))
    trained, drawn = trained_dir(Recipe()), ensure_model("tiny", "bf16")
    with ExitStack() as stack:
        probes = [stack.enter_context(Helper(PROBE, str(model), threads)) for model in (trained, drawn, drawn)]
        rows = [
            _validity("the small trained model", trained, probes[0], options, console),
            _validity("random weights", drawn, probes[1], options, console),
            *_kills(drawn, probes[1:], console),
        ]
    return [*rows, *measure_rows(options, console), *measure_hostile(options, console)]


def _validity(name: str, model: Path, probe: Helper, options: Options, console: Console) -> Row:
    """Return which share of the answers that ended validates."""
    text_of, ends = Tokenizer.from_file(str(model / "tokenizer.json")).decode, ends_of(model)
    count, valid, ended = options.count or NUM_SCHEMAS, 0, 0
    for first in range(0, count, NUM_SEQS):
        numbers = range(first, min(count, first + NUM_SEQS))
        said = probe.ask(Ask([_bound(number, ends) for number in numbers]), Said)
        for number, tokens, reason in zip(numbers, said.tokens, said.finish_reasons, strict=True):
            if reason == "stop":
                ended += 1
                valid += is_valid(text_of(tokens[:-1], skip_special_tokens=False), number)
    console.print(f"  {name}: {valid} of {ended} answers that ended, of {count}", highlight=False)
    what = f"finished outputs that validate, {count} schemas, {name}"
    return Row(what, 100 * valid / max(1, ended), "%", goal=AtLeast(100))


def _bound(number: int, ends: tuple[int, ...]) -> Asked:
    return Asked([7, number % 90 + 5], MOST_TOKENS, bound_by(make_schema(number), ends), seed=number)


def is_valid(text: str, number: int) -> bool:
    """Return whether an answer is what the schema of this number accepts."""
    try:
        jsonschema.validate(json.loads(text), make_schema(number))
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def _kills(model: Path, probes: Sequence[Helper], console: Console) -> Iterator[Row]:
    """Yield how many streams said something else than one that nobody killed, and how many are invalid."""
    ends, draw, kills, wrong, invalid, streams = ends_of(model), random.Random(7), 0, 0, 0, 0
    text_of = Tokenizer.from_file(str(model / "tokenizer.json")).decode
    while kills < NUM_KILLS:
        asked = {number: _bound(number, ends) for number in range(streams, streams + NUM_KILLED)}
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
