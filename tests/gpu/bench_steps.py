"""Decode and prefill steps of a worker, timed from the batch to the sampled tokens."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from msgspec.structs import replace

from dormouse_worker.engine.batch import Batch, NewSequence
from dormouse_worker.engine.testing import make_sampling
from tests.gpu.answers import Computes, make_batch, make_steps, make_tables, run_ahead

WARM_UP_STEPS, STEPS = 3, 16


def decode_step_s(worker: Computes, num_seqs: int, context: int, block_size: int) -> float:
    """Return the median time of a step in which every sequence decodes, at about `context` tokens.

    What the cache holds of the contexts was never computed, which takes no less time to read.
    """
    times = []
    for batch in _decode_steps(worker, num_seqs, context, block_size):
        started_s = time.perf_counter()
        worker.execute_model(batch)
        times.append(time.perf_counter() - started_s)
    return median(times[1 + WARM_UP_STEPS :])


def decode_ahead_step_s(worker: Computes, num_seqs: int, context: int, block_size: int) -> float:
    """Return the median time from one step's tokens to the next one's, where the next has begun before."""
    outputs = run_ahead(worker, _decode_steps(worker, num_seqs, context, block_size))
    times_s = [time.perf_counter() for _ in outputs]
    return median(later - earlier for earlier, later in pairwise(times_s[WARM_UP_STEPS:]))


def prefill_s(worker: Computes, num_tokens: int, block_size: int) -> float:
    """Return the median time of one prompt alone, to its first token. It may be as long as the model bears."""
    (table,) = make_tables([num_tokens], len(worker.layer_windows()), block_size)
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


def _decode_steps(worker: Computes, num_seqs: int, context: int, block_size: int) -> Iterator[Batch]:
    """Yield a batch that introduces the sequences, as if the cache held their contexts, and the steps after it."""
    sequences = [_sequence(str(number), context) for number in range(num_seqs)]
    first, *steps = make_steps(worker, sequences, 1 + WARM_UP_STEPS + STEPS, block_size)
    yield replace(first, sequences=tuple(replace(s, start=s.end - 1) for s in first.sequences))
    yield from steps


def _sequence(request_id: str, num_tokens: int) -> NewSequence:
    prompt: Sequence[int] = [(7 * position) % 500 for position in range(num_tokens)]
    return NewSequence(request_id, list(prompt), [], make_sampling(max_tokens=STEPS))
