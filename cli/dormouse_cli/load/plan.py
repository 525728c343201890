"""What is asked, and when: the same seed makes the same requests at the same times. Pure."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from itertools import accumulate


class BadPlan(ValueError):
    """This load cannot be made; the message names the option, its value and the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the user ordered."""

    num_prompts: int
    rate: float  # requests per second; inf = all at once
    input_len: int  # tokens of each prompt
    output_len: int  # most tokens of each answer
    seed: int
    warmups: int
    max_concurrency: int
    ignore_eos: bool = False  # answers go on to their full length


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What prompts are made of."""

    size: int
    ends: Collection[int]  # tokens that end an answer: none stands in a prompt
    max_model_len: int  # tokens, prompt and answer together; 0 = unknown


def arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Return when each request is due, in seconds from the first: a Poisson process of this rate."""
    if rate == float("inf"):
        return [0.0] * count
    rng = random.Random(f"arrivals {seed}")  # noqa: S311  # reproducible is the aim
    return list(accumulate((rng.expovariate(rate) for _ in range(count - 1)), initial=0.0))[:count]


def prompts(load: Load, words: Vocabulary) -> list[list[int]]:
    """Return the prompts' tokens, those of the warm-ups first; no two begin alike, but by chance."""
    check(load, words)
    allowed = sorted(set(range(words.size)) - set(words.ends))
    rng = random.Random(f"prompts {load.seed}")  # noqa: S311  # reproducible is the aim
    return [rng.choices(allowed, k=load.input_len) for _ in range(load.warmups + load.num_prompts)]


def check(load: Load, words: Vocabulary) -> None:
    """Raise BadPlan unless the model can take such requests."""
    both = load.input_len + load.output_len
    if words.max_model_len and both > words.max_model_len:
        raise BadPlan(
            f"--random-input-len {load.input_len} and --random-output-len {load.output_len} make {both} tokens;"
            f" the model takes at most {words.max_model_len}"
        )
    if words.size <= len(set(words.ends)):
        raise BadPlan(f"the model tells a vocabulary of {words.size} tokens: no prompt can be made of it")
