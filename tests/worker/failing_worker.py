"""A worker whose forward passes raise once it has a cache: what an engine does then is the tests' question."""

from __future__ import annotations

from collections.abc import Callable

from dormouse_worker.engine.batch import Batch, ModelOutput
from dormouse_worker.executor.worker.cpu_worker import CpuWorker

QUALIFIED_NAME = f"{__name__}.FailingWorker"


class FailingWorker(CpuWorker):
    """A `CpuWorker` that answers its golden tokens, and nobody else."""

    def submit(self, batch: Batch) -> Callable[[], ModelOutput]:
        """See `WorkerBase`."""
        if any(sequence.request_id in {"first", "second"} for sequence in batch.sequences):
            raise RuntimeError("this worker computes nothing")
        return super().submit(batch)
