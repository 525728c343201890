"""What computes passes over whole texts, as the engine sees it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from dormouse_worker.engine.pooling.batch import PoolingBatch, PoolingOutput


class PassUnderWay(Protocol):
    """A forward pass that stops where it can, and goes on later with the bits of the whole."""

    def advance(self, seconds: float) -> bool:
        """Compute for so long, and until it can stop or is done; return whether it is. Raises as `finish` does."""

    def finish(self) -> PoolingOutput:
        """Compute the rest; return a vector for each text, in order. Errors are those of `execute_model`."""

    def leave(self) -> None:
        """Drop what there is of it."""


@runtime_checkable
class PoolingExecutor(Protocol):
    """Runs forward passes that give vectors."""

    def begin_pooling(self, batch: PoolingBatch) -> PassUnderWay:
        """Return a pass over the batch of which nothing is computed yet. Errors are those of `execute_model`.

        Another one may be computed, whole, while it has stopped.
        """
