"""Fake executors that take several batches at a time: a pipeline, and a device that the engine runs ahead of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dormouse_worker.common.ipc import MemoryReport
from dormouse_worker.engine.batch import Batch, ModelOutput, SampledToken
from dormouse_worker.engine.testing import VOCAB_SIZE, ManualClock
from dormouse_worker.engine.testing_executor import FakeExecutor


class StagedFakeExecutor(FakeExecutor):
    """Implements `StagedExecutor` as a group does: in order, and a token is noted when a later batch brings it.

    After a batch that raised it says nonsense until a fresh one comes, or raises too if it `is_stubborn`.
    Errors come when an output is asked for, or when its batch is handed over if it `raises_at_once`.
    """

    def __init__(
        self,
        report: MemoryReport | None = None,
        clock: ManualClock | None = None,
        windows: tuple[int | None, ...] = (None,),
    ) -> None:
        super().__init__(report, clock, windows)
        self.is_stubborn = self.raises_at_once = False
        self.under_way: list[Batch] = []  # whose outputs nobody has asked for
        self.most_under_way = 0
        self._untold: list[SampledToken] = []
        self._is_lost = False

    def submit(self, batch: Batch) -> Callable[[], ModelOutput]:
        """See `StagedExecutor`."""
        self._begin(batch)
        self.under_way.append(batch)
        self.most_under_way = max(self.most_under_way, len(self.under_way))
        try:
            return partial(self._collect, batch, self._compute(batch), None)
        except Exception as error:
            self._is_lost = True
            if self.raises_at_once:
                self.under_way.pop()
                raise
            return partial(self._collect, batch, ModelOutput([]), error)

    def runs_ahead(self) -> bool:
        """See `StagedExecutor`."""
        return False

    def _begin(self, batch: Batch) -> None:
        """Note the tokens that come with the batch."""
        untold, self._untold = self._untold, []
        for token in [each for each in untold if each.request_id in self._sequences]:
            self._sequences[token.request_id].tokens += [token.token_id, *token.forced]
        busy = {request_id for other in self.under_way for request_id in other.request_ids}
        assert not busy & set(batch.request_ids), "a request is in one batch at most"

    def _end(self, output: ModelOutput) -> None:
        """Know nothing of the tokens before a batch brings them."""
        for token in output.sampled:
            del self._sequences[token.request_id].tokens[-1 - len(token.forced) :]

    def _compute(self, batch: Batch) -> ModelOutput:
        if self._is_lost and not batch.is_fresh:
            if self.is_stubborn:
                raise RuntimeError("this is no fresh batch")
            return ModelOutput([SampledToken(s.request_id, VOCAB_SIZE) for s in batch.sequences if s.samples])
        output = self.execute_model(batch)
        self._is_lost = False
        self._end(output)
        return output

    def _collect(self, batch: Batch, output: ModelOutput, error: Exception | None) -> ModelOutput:
        assert self.under_way.pop(0) is batch, "outputs are asked for in order, once"
        if error is not None:
            raise error
        self._untold += output.sampled
        return output


class AheadFakeExecutor(StagedFakeExecutor):
    """Implements `StagedExecutor` as a device that runs ahead: it knows a token before anybody has asked for it."""

    def runs_ahead(self) -> bool:
        """See `StagedExecutor`."""
        return True

    def _begin(self, batch: Batch) -> None:
        """Whatever is promised is known here, but not how many tokens a bound sequence gets."""
        busy = {request_id for other in self.under_way for request_id in other.request_ids}
        both = [self._sequences[key].new for key in busy & set(batch.request_ids) if key in self._sequences]
        assert all(new.sampling.grammar is None for new in both), "its next tokens may be several"

    def _end(self, output: ModelOutput) -> None:
        del output  # and stays so
