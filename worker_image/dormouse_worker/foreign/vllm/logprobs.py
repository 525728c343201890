"""vLLM's rows of log-probabilities as ours. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dormouse_worker.common.ipc import TokenLogprobs
from dormouse_worker.foreign.vllm.interface import Row


def to_logprobs(rows: Sequence[Row], num_top: int) -> list[TokenLogprobs]:
    """Return what a request is told that asked for so many likeliest tokens.

    A row may have more: as many as another request of the same step asked for.
    """
    end = 1 + num_top
    return [TokenLogprobs(values[0], ids[1:end], values[1:end]) for ids, values in rows]


def parts(rows: Sequence[Row], size: int) -> Iterator[Sequence[Row]]:
    """Yield the rows in parts of this size, and the rest."""
    return (rows[start : start + size] for start in range(0, len(rows), size))
