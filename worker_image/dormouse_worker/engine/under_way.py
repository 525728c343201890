"""The batches that the executor computes now. One at a time, or several where it has stages or runs ahead."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from dormouse_worker.common.errors import GroupBroken
from dormouse_worker.engine.batch import Batch, ModelOutput
from dormouse_worker.engine.executor import ModelExecutor, StagedExecutor

logger = logging.getLogger(__name__)

Submitted = tuple[Batch, Callable[[], ModelOutput]]  # the second waits for the output, and may raise


class UnderWay:
    """Owns which batches were handed over and not yet waited for, oldest first."""

    def __init__(self, executor: ModelExecutor, max_batches: int) -> None:
        self._executor = executor
        self._max_batches = max_batches
        self.batches: deque[Submitted] = deque()

    def __repr__(self) -> str:
        return f"UnderWay({len(self.batches)} of {self._max_batches})"

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def has_room(self) -> bool:
        """Return whether the executor takes another one now."""
        return len(self.batches) < self._max_batches

    def submit(self, batch: Batch) -> None:
        """Hand a batch over. Raises GroupBroken; whatever else goes wrong is told in its turn."""
        self.batches.append((batch, self._submitted(batch)))

    def take_oldest(self) -> Submitted:
        """Return the batch whose turn it is to be waited for; there must be one."""
        return self.batches.popleft()

    def discard(self) -> Iterator[Batch]:
        """Wait for the batches behind one that failed; yield them. Ranks in an unknown state computed them."""
        while self.batches:
            batch, wait_for_output = self.batches.popleft()
            try:
                wait_for_output()
            except GroupBroken:
                raise
            except Exception as error:  # noqa: BLE001  a consequence of the first
                logger.warning("a forward pass behind it failed too: %s", error)
            yield batch

    def _submitted(self, batch: Batch) -> Callable[[], ModelOutput]:
        if self._max_batches == 1:
            return partial(self._executor.execute_model, batch)
        assert isinstance(self._executor, StagedExecutor), "nobody else takes several batches"
        try:
            return self._executor.submit(batch)
        except GroupBroken:
            raise
        except Exception as error:  # noqa: BLE001  told in its turn, behind the batches before it
            return partial(_raise, error)


def _raise(error: Exception) -> ModelOutput:
    raise error
