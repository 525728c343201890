"""The golden vectors: what a model makes of fixed texts at its first start, and must make again after every wake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dormouse_worker.common.errors import GoldenTokensDiffer, LogitsNotFinite
from dormouse_worker.common.task_messages import PoolingParams
from dormouse_worker.engine.pooling.batch import PooledSequence, PoolingBatch, PoolingOutput

LENGTHS = (24, 24, 7, 1)  # of texts in one pass: neighbours of equal length, and others

Execute = Callable[[PoolingBatch], PoolingOutput]


@dataclass(frozen=True, slots=True)
class GoldenVectors:
    """One pass and what it gave."""

    batch: PoolingBatch
    vectors: tuple[bytes, ...]


def record_golden(execute: Execute, *, vocab_size: int, max_model_len: int) -> GoldenVectors:
    """Compute the golden pass. Raises LogitsNotFinite."""
    texts = [
        [(7 * place + 3 + 5 * number) % vocab_size for place in range(min(length, max_model_len))]
        for number, length in enumerate(LENGTHS)
    ]
    batch = PoolingBatch(tuple(PooledSequence(text, PoolingParams()) for text in texts))
    return GoldenVectors(batch, _vectors(execute, batch))


def verify_golden(execute: Execute, recorded: GoldenVectors) -> None:
    """Repeat the pass. Raises GoldenTokensDiffer unless every bit is the recorded one."""
    now = _vectors(execute, recorded.batch)
    for number, (before, after) in enumerate(zip(recorded.vectors, now, strict=True)):
        if before != after:
            raise GoldenTokensDiffer(
                f"the vector of golden text {number + 1} is not that of the first start; the same pass on the same "
                "weights gives the same bits: the model's files changed or its memory is damaged: restart the worker"
            )


def _vectors(execute: Execute, batch: PoolingBatch) -> tuple[bytes, ...]:
    output = execute(batch)
    if output.not_finite:
        raise LogitsNotFinite(
            "the vectors of the model's golden texts are not finite: its weights are damaged, or its numbers grow too "
            "large for its dtype: copy the model again, or choose a dtype with a wider range (bfloat16, float32)"
        )
    return tuple(output.vectors)
