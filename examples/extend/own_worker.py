"""A worker class of one's own: the CPU's, which also says how fast it computed.

Run with `--worker-cls=own_worker.TimedWorker`.
"""

from __future__ import annotations

import logging
import time

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.batch import Batch, ModelOutput
from dormouse_worker.executor.worker.cpu_worker import CpuWorker

logger = logging.getLogger(__name__)


class TimedWorker(CpuWorker):
    """Counts tokens and seconds of all forward passes; the sum is logged when the worker ends."""

    def __init__(self, settings: EngineSettings, rank: int) -> None:
        super().__init__(settings, rank)
        self.num_tokens = 0
        self.busy_s = 0.0

    def execute_model(self, batch: Batch) -> ModelOutput:
        """See `WorkerBase`."""
        started_s = time.perf_counter()
        output = super().execute_model(batch)
        self.busy_s += time.perf_counter() - started_s
        self.num_tokens += sum(sequence.end - sequence.start for sequence in batch.sequences)
        return output

    def shutdown(self) -> None:
        """See `WorkerBase`."""
        logger.info("rank %d computed %d tokens in %.3f s", self.rank, self.num_tokens, self.busy_s)
        super().shutdown()
