"""The benchmarks' workloads: prompts as token ids and output lengths, the same for the same seed on every machine.

Lengths depend on (workload, seed, count) alone, token ids on `rep` too: repetitions have the same shape and share no
prompt, so that a prefix cache left warm by one does not serve the next. Greedy, end-of-sequence ignored: every engine
does the same amount of work.

    W1  offline throughput   64 requests, prompts of 32 to 512 tokens, outputs of 32 to 256
    W2  single stream        1 request, prompt 128, output 128
    W3  shared prefix        32 requests, one prefix of 512 tokens and 32 own ones, output 32
    W4  decode width         64 requests, prompt 32, output 128
    serve  requests over time  prompts and outputs of 64 to 192 tokens, 128 on average

Each random stream is keyed by a string, and the order of the draws is part of the definition.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat

import msgspec

FIRST_ID = 3  # the ids below are the special tokens of the benchmark models
SEED = 7


class Request(msgspec.Struct, frozen=True):
    """One request; its tokens are generated greedily and end-of-sequence is ignored."""

    id: str
    prompt: list[int]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that are all submitted at once."""

    name: str
    requests: tuple[Request, ...]

    def digest(self) -> str:
        """Return a short name of exactly these requests."""
        text = json.dumps(msgspec.to_builtins(self.requests), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Draw:
    """The two random streams of one workload."""

    lengths: random.Random
    tokens: random.Random
    vocab_size: int

    def ids(self, count: int) -> list[int]:
        """Return random token ids, special ones left out."""
        return [self.tokens.randrange(FIRST_ID, self.vocab_size) for _ in range(count)]


def _offline(draw: Draw, count: int) -> Iterator[tuple[list[int], int]]:
    shapes = [(draw.lengths.randint(32, 512), draw.lengths.randint(32, 256)) for _ in range(count)]
    return ((draw.ids(num_prompt), num_output) for num_prompt, num_output in shapes)


def _single_stream(draw: Draw, count: int) -> Iterator[tuple[list[int], int]]:
    return ((draw.ids(128), 128) for _ in repeat(None, count))


def _shared_prefix(draw: Draw, count: int) -> Iterator[tuple[list[int], int]]:
    prefix = draw.ids(512)
    return ((prefix + draw.ids(32), 32) for _ in repeat(None, count))


def _decode_width(draw: Draw, count: int) -> Iterator[tuple[list[int], int]]:
    return ((draw.ids(32), 128) for _ in repeat(None, count))


def _serve(draw: Draw, count: int) -> Iterator[tuple[list[int], int]]:
    shapes = [(draw.lengths.randint(64, 192), draw.lengths.randint(64, 192)) for _ in range(count)]
    return ((draw.ids(num_prompt), num_output) for num_prompt, num_output in shapes)


SHAPES: dict[str, tuple[int, Callable[[Draw, int], Iterator[tuple[list[int], int]]]]] = {
    "W1": (64, _offline),
    "W2": (1, _single_stream),
    "W3": (32, _shared_prefix),
    "W4": (64, _decode_width),
    "serve": (64, _serve),
}


def make_workload(name: str, *, vocab_size: int, rep: int = 0, count: int | None = None, seed: int = SEED) -> Workload:
    """Return workload `name` with its own number of requests, or with `count`. Raises KeyError for another name."""
    default_count, shape = SHAPES[name]
    lengths, tokens = random.Random(f"{name}/{seed}/lengths"), random.Random(f"{name}/{seed}/{rep}/tokens")
    drawn = shape(Draw(lengths, tokens, vocab_size), count or default_count)
    requests = (Request(str(i), prompt, num_output) for i, (prompt, num_output) in enumerate(drawn))
    return Workload(name, tuple(requests))
