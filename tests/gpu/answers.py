"""Greedy answers straight from a worker, with the bits of their log-probabilities: what must be equal after a sleep."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from dormouse_worker.engine.batch import Batch, ModelOutput, NewSequence, ScheduledSequence
from dormouse_worker.engine.testing import make_sampling

NUM_LOGPROBS = 4


class Computes(Protocol):
    """A worker that is loaded and has its cache."""

    def execute_model(self, batch: Batch) -> ModelOutput:
        """Compute one batch."""

    def submit(self, batch: Batch) -> Callable[[], ModelOutput]:
        """Begin with one batch; return who waits for its output."""

    def layer_windows(self) -> tuple[int | None, ...]:
        """Return a window for each layer group."""


def answer(
    worker: Computes,
    prompts: Sequence[list[int]],
    num_tokens: int,
    *,
    block_size: int,
    num_logprobs: int = NUM_LOGPROBS,
) -> list[ModelOutput]:
    """Return what each step samples: the prompts in one pass, then decode steps of all of them together."""
    sampling = make_sampling(max_tokens=num_tokens, logprobs=num_logprobs)
    sequences = [NewSequence(str(number), prompt, [], sampling) for number, prompt in enumerate(prompts)]
    return [worker.execute_model(batch) for batch in make_steps(worker, sequences, num_tokens, block_size)]


def run_ahead(worker: Computes, batches: Iterator[Batch]) -> Iterator[ModelOutput]:
    """Yield what the batches say, each once the one after it has begun, as the engine does."""
    waiting: deque[Callable[[], ModelOutput]] = deque()
    for batch in batches:
        waiting.append(worker.submit(batch))
        if len(waiting) > 1:
            yield waiting.popleft()()
    while waiting:
        yield waiting.popleft()()


def make_steps(worker: Computes, sequences: Sequence[NewSequence], num_tokens: int, block_size: int) -> Iterator[Batch]:
    """Yield the batches that answer them with so many tokens: all prompts in one, then a decode step each."""
    tables = iter(make_tables([s.num_tokens + num_tokens for s in sequences], len(worker.layer_windows()), block_size))
    yield make_batch([(s.request_id, 0, s.num_tokens, next(tables)) for s in sequences], new=sequences)
    no_blocks: tuple[list[int], ...] = ([],) * len(worker.layer_windows())
    for step in range(num_tokens - 1):
        spans = [(s.request_id, s.num_tokens + step, s.num_tokens + step + 1, no_blocks) for s in sequences]
        yield make_batch(spans)


def tokens_of(steps: Sequence[ModelOutput], number: int) -> list[int]:
    """Return the tokens that one prompt was answered with."""
    return [step.sampled[number].token_id for step in steps]


def make_tables(lengths: Sequence[int], num_groups: int, block_size: int) -> list[tuple[list[int], ...]]:
    """Return for each sequence the blocks of each layer group, none used twice."""
    tables, first = [], 0
    for length in lengths:
        width = -(-length // block_size)
        starts = [first + group * width for group in range(num_groups)]
        tables.append(tuple(list(range(start, start + width)) for start in starts))
        first += num_groups * width
    return tables


def make_batch(spans: Sequence[tuple[str, int, int, tuple[list[int], ...]]], new: Sequence[NewSequence] = ()) -> Batch:
    """Return a batch of sequences that compute [start, end) and sample; new ones replace everything that was known."""
    scheduled = tuple(ScheduledSequence(*span, samples=True) for span in spans)
    return Batch(is_fresh=bool(new), released=(), swap_out=(), swap_in=(), new=tuple(new), sequences=scheduled)
