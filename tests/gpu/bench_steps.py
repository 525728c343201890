"""Decode and prefill steps of a worker, timed from the batch to the sampled tokens."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from msgspec.structs import replace

from dormouse_worker.engine.batch import NewSequence
from dormouse_worker.engine.testing import make_sampling
from tests.gpu.answers import Computes, make_batch, make_steps, make_tables, run_ahead

WARM_UP_STEPS, STEPS = 3, 16


def decode_step_s(worker: Computes, num_seqs: int, context: int, block_size: int) -> float:
    """Return the median time of a step in which every sequence decodes, at about `context` tokens.

    What the cache holds of the contexts was never computed, which takes no less time to read.
    """
    sequences = [_sequence(str(number), context) for number in range(num_seqs)]
    num_groups, num_steps = len(worker.layer_windows()), WARM_UP_STEPS + STEPS
    tables = make_tables([context + num_steps + 1] * num_seqs, num_groups, block_size)
    spans = [(s.request_id, context - 1, context, table) for s, table in zip(sequences, tables, strict=True)]
    worker.execute_model(make_batch(spans, new=sequences))
    no_blocks: tuple[list[int], ...] = ([],) * num_groups
    times = []
    for step in range(num_steps):
        batch = make_batch([(s.request_id, context + step, context + step + 1, no_blocks) for s in sequences])
        started_s = time.perf_counter()
        worker.execute_model(batch)
        times.append(time.perf_counter() - started_s)
    return median(times[WARM_UP_STEPS:])


def decode_ahead_step_s(worker: Computes, num_seqs: int, context: int, block_size: int) -> float:
    """Return the median time from one step's tokens to the next one's, where the next has begun before."""
    sequences = [_sequence(str(number), context) for number in range(num_seqs)]
    (first, *steps) = make_steps(worker, sequences, WARM_UP_STEPS + STEPS, block_size)
    computed = tuple(replace(s, start=s.end - 1) for s in first.sequences)  # as if the cache held the rest
    times_s = [time.perf_counter() for _ in run_ahead(worker, iter([replace(first, sequences=computed), *steps]))]
    return median(later - earlier for earlier, later in pairwise(times_s[WARM_UP_STEPS:]))


def prefill_s(worker: Computes, num_tokens: int, block_size: int) -> float:
    """Return the median time of one prompt alone, to its first token."""
    (table,) = make_tables([num_tokens + 1], len(worker.layer_windows()), block_size)
    times = []
    for _ in range(WARM_UP_STEPS + 3):
        sequence = _sequence("prompt", num_tokens)
        times.append(first_token_s(worker, sequence, table))
    return median(times[WARM_UP_STEPS:])


def first_token_s(worker: Computes, sequence: NewSequence, table: tuple[list[int], ...]) -> float:
    """Return how long one sequence's first token takes."""
    batch = make_batch([(sequence.request_id, 0, sequence.num_tokens, table)], new=[sequence])
    started_s = time.perf_counter()
    worker.execute_model(batch)
    return time.perf_counter() - started_s


def short_prompt_s(worker: Computes, block_size: int) -> float:
    """Return how long the first token of a short prompt takes."""
    (table,) = make_tables([17], len(worker.layer_windows()), block_size)
    return first_token_s(worker, _sequence("short", 16), table)


def _sequence(request_id: str, num_tokens: int) -> NewSequence:
    prompt: Sequence[int] = [(7 * position) % 500 for position in range(num_tokens)]
    return NewSequence(request_id, list(prompt), [], make_sampling(max_tokens=STEPS))
