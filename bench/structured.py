"""Bound answers: validity over generated schemas, tokens per second beside free text, hostile grammars, kills.

    validity   1,000 generated schemas on the small trained model and on random weights: do answers that end validate
    rows       64 bound rows beside 64 free ones, 63 free and a bound one beside 64 free ones, one beside one
    forced     an object of 60 required fields beside free text of as many passes, one at a time
    hostile    `bench.structured_hostile`: seconds until the front refuses, and what neighbours notice
    kills      64 streams whose engine is cut off after random passes and resumed in another, 200 times

Sides take turns and the median of the pairs' ratios counts: what disturbs one disturbs the other. Sampling at
temperature 1 with seeds. `bench.structured_sets` compares accepted
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
from bench.results import AtLeast, AtMost, RatioAtLeast, Row
from bench.structured_cases import ENDLESS, bound_by, make_schema, sixty_fields
from bench.structured_hostile import ends_of
from bench.structured_hostile import measure as measure_hostile
from bench.structured_probe import Ask, Asked, Said
from bench.workload import make_workload
from tools.train_model import Recipe
from tools.train_model import model_dir as trained_dir

PROBE = "bench.structured_probe"
NUM_SCHEMAS, NUM_SEQS, NUM_KILLS, NUM_KILLED = 1_000, 64, 200, 64
MOST_TOKENS = 300
DECODED = 32  # tokens of each sequence, in a measurement of rows
PAIRS = 2  # for each of the repetitions asked for
SPEED_UNIT = "output tokens/s"


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
    with Helper(PROBE, str(ensure_model("small", "bf16")), threads) as probe:
        rows += _speed(probe, ends_of(ensure_model("small", "bf16")), PAIRS * options.reps, console)
    return [*rows, *measure_hostile(options, console)]


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
                valid += _is_valid(text_of(tokens[:-1], skip_special_tokens=False), number)
    console.print(f"  {name}: {valid} of {ended} answers that ended, of {count}", highlight=False)
    what = f"finished outputs that validate, {count} schemas, {name}"
    return Row(what, 100 * valid / max(1, ended), "%", goal=AtLeast(100))


def _bound(number: int, ends: tuple[int, ...]) -> Asked:
    return Asked([7, number % 90 + 5], MOST_TOKENS, bound_by(make_schema(number), ends), seed=number)


def _is_valid(text: str, number: int) -> bool:
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
            invalid += reason == "stop" and not _is_valid(text_of(said[number][:-1], skip_special_tokens=False), number)
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
