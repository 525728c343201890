"""The way of every call over whole texts: admitted, made ready, computed, answered whole. Raises CallError."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dormouse_worker.common.ipc import ModelInfo
from dormouse_worker.common.task_messages import PooledOutput, PoolingParams
from dormouse_worker.front.requests.caller import Caller
from dormouse_worker.front.requests.pooled import PooledAnswer
from dormouse_worker.front.requests.streams import Times
from dormouse_worker.front.worker import Worker


@dataclass(frozen=True, slots=True)
class Texts:
    """What the engine gets of a call."""

    token_ids: list[list[int]]
    second_starts: list[int]  # see `AddPooling`

    @property
    def num_tokens(self) -> int:
        """Return how many tokens all texts have."""
        return sum(map(len, self.token_ids))


Prepare = Callable[[int], Awaitable[Texts]]  # with the longest that a text may be


def admitted(worker: Worker, caller: Caller) -> ModelInfo:
    """Return the model as the engine loaded it. Raises CallError where nothing is taken."""
    worker.check_admission(caller)
    assert worker.board.engine.model is not None, "a worker that admits has loaded"
    return worker.board.engine.model


async def compute(
    worker: Worker, caller: Caller, prepare: Prepare, params: PoolingParams, *, priority: int, arrival_s: float
) -> tuple[PooledOutput, Texts]:
    """Return what the engine makes of the texts, and these. Raises CallError."""
    report = worker.board.engine.report
    assert report is not None, "a worker that admits has profiled"
    with worker.requests.preparing(1, holds=caller.is_in_pod):
        texts = await prepare(report.max_model_len)
    worker.check_admission(caller, again=True)  # it may have changed while we tokenized
    answer: PooledAnswer[PooledOutput] = PooledAnswer(Times(arrival_s))
    worker.metrics.on_prompt(texts.num_tokens)
    key = worker.requests.open_pooling(answer, texts.token_ids, params, priority=priority, starts=texts.second_starts)
    try:
        return await answer.wait(), texts
    finally:
        worker.requests.abandon([key])
