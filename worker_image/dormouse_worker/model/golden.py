"""The golden tokens: what a model says to a fixed prompt at its first start, and must say again after every wake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dormouse_worker.engine.batch import Batch, BlockIds, ModelOutput, NewSequence, SampledToken, single
from dormouse_worker.errors import GoldenTokensDiffer
from dormouse_worker.ipc import Sampling

NUM_PROMPT_TOKENS = 8
NUM_TOKENS = 16
LOGPROB_TOLERANCE = 1e-3  # the same shapes on the same device differ by rounding at most
_GREEDY = Sampling(temperature=0, top_p=1, top_k=0, min_p=0, seed=0, max_tokens=NUM_TOKENS, logprobs=0)


@dataclass(frozen=True, slots=True)
class GoldenTokens:
    """Tokens and their log-probabilities; fewer than 16 only where the model length is shorter."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def generate_golden(
    execute: Callable[[Batch], ModelOutput],
    *,
    vocab_size: int,
    max_model_len: int,
    block_size: int,
    num_groups: int = 1,
) -> GoldenTokens:
    """Generate greedily through the normal path, alone, in the first blocks of an otherwise unused cache.

    The tables of the layer groups follow each other.
    """
    width = -(-min(max_model_len, NUM_PROMPT_TOKENS + NUM_TOKENS) // block_size)
    tables = tuple(list(range(group * width, (group + 1) * width)) for group in range(num_groups))
    num_prompt = max(1, min(NUM_PROMPT_TOKENS, max_model_len - NUM_TOKENS))
    known = [(7 * i + 3) % vocab_size for i in range(num_prompt)]
    logprobs: list[float] = []
    start = 0
    while len(logprobs) < NUM_TOKENS and len(known) <= max_model_len:
        sampled = _next(execute, known, start, tables)
        start = len(known)
        known.append(sampled.token_id)
        logprobs.append(sampled.logprobs.sampled if sampled.logprobs else 0.0)
    return GoldenTokens(tuple(known[num_prompt:]), tuple(logprobs))


def compare_golden(recorded: GoldenTokens, now: GoldenTokens) -> None:
    """Raise GoldenTokensDiffer with both token lists unless they are the same."""
    if recorded.token_ids != now.token_ids:
        raise GoldenTokensDiffer(
            f"the first start gave {list(recorded.token_ids)}, now it is {list(now.token_ids)}; "
            "the model's files changed or its memory is damaged: restart the worker"
        )
    for before, after in zip(recorded.logprobs, now.logprobs, strict=True):
        if not abs(before - after) <= LOGPROB_TOLERANCE:  # so written, a NaN differs
            raise GoldenTokensDiffer(
                f"a golden token's log-probability moved from {before:.6f} to {after:.6f}; at most "
                f"{LOGPROB_TOLERANCE} is rounding: restart the worker"
            )


def _next(execute: Callable[[Batch], ModelOutput], known: list[int], start: int, tables: BlockIds) -> SampledToken:
    (sampled,) = execute(single(NewSequence("golden", known, [], _GREEDY), tables, start=start)).sampled
    return sampled
