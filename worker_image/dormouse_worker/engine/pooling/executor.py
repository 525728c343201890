"""What computes passes over whole texts, as the engine sees it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from dormouse_worker.engine.pooling.batch import PoolingBatch, PoolingOutput


@runtime_checkable
class PoolingExecutor(Protocol):
    """Runs forward passes that give vectors."""

    def execute_pooling(self, batch: PoolingBatch) -> PoolingOutput:
        """Compute the batch; return a vector for each of its texts, in order. Errors are those of `execute_model`."""
