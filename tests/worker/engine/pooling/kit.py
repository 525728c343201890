"""An engine for vectors, passes that stop behind each token, and time."""

from __future__ import annotations

import math

from dormouse_worker.common.task_messages import AddPooling, PoolingParams
from dormouse_worker.engine.pooling.batch import PoolingOutput
from dormouse_worker.engine.pooling.engine import PoolingEngine, PoolingLimits
from dormouse_worker.engine.testing import ManualClock


class Passes:
    """Implements `PoolingExecutor`: a vector is its text."""

    def __init__(self, clock, token_s):
        self.clock, self.token_s = clock, token_s
        self.batches = []
        self.left = []
        self.error = None
        self.odd = ()

    def begin_pooling(self, batch):
        self.batches.append([sequence.token_ids for sequence in batch.sequences])
        return TokenByToken(self, batch)

    def verify(self):
        if self.error:
            raise self.error


class TokenByToken:
    """Implements `PassUnderWay`: it can stop behind each token."""

    def __init__(self, passes, batch):
        self._passes = passes
        self._texts = [sequence.token_ids for sequence in batch.sequences]
        self._num_left = sum(map(len, self._texts))

    def advance(self, seconds):
        clock = self._passes.clock
        deadline_s = clock.now_s + seconds
        while self._num_left:
            self._num_left -= 1
            clock.now_s += self._passes.token_s
            if self._passes.error:
                raise self._passes.error
            if clock.now_s >= deadline_s:
                break
        return not self._num_left

    def finish(self):
        assert self.advance(math.inf)
        return PoolingOutput([bytes(text) for text in self._texts], self._passes.odd)

    def leave(self):
        self._passes.left.append(self._texts)


class House:
    """An engine, the passes that it has computed, and time."""

    def __init__(self, token_s=0.0, **limits):
        self.clock = ManualClock()
        self.passes = Passes(self.clock, token_s)
        known = {"max_num_seqs": 4, "max_num_batched_tokens": 8, "max_model_len": 6}
        self.engine = PoolingEngine(self.passes, PoolingLimits(**{**known, **limits}), self.clock)

    def add(self, name, *texts, priority=0):
        return self.engine.add(AddPooling(name, [list(text) for text in texts], PoolingParams(), priority))

    def run(self):
        told = []
        while self.engine.has_work:
            told += [(output.request_id, output.vectors) for output in self.end_pass().pooled]
            self.engine.check_integrity()
        return told

    def end_pass(self):
        """Step until a pass has ended; return what is told."""
        while (outputs := self.engine.step()) is None:
            self.engine.check_integrity()
        return outputs


def lengths(house):
    return [len(batch) for batch in house.passes.batches]
