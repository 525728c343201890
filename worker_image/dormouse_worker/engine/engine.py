"""The step: schedule, run, commit. Owns the scheduler; knows neither sockets nor states."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dormouse_worker.engine.batch import Batch
from dormouse_worker.engine.executor import ModelExecutor
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.scheduler import Progress, Scheduler
from dormouse_worker.ipc import AddRequest, StepOutputs, TokenOutput

logger = logging.getLogger(__name__)


class Engine:
    """Turns requests into tokens, one forward pass per step."""

    def __init__(self, executor: ModelExecutor, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._executor = executor
        self._scheduler = scheduler
        self._clock = clock
        self._num_failures_in_a_row = 0

    def __repr__(self) -> str:
        return f"Engine({self._scheduler!r})"

    @property
    def has_work(self) -> bool:
        """Return whether any request is unfinished."""
        return self._scheduler.has_work

    @property
    def num_requests(self) -> int:
        """Return how many requests are unfinished."""
        return self._scheduler.num_running + self._scheduler.num_waiting

    @property
    def num_failures_in_a_row(self) -> int:
        """Return how many forward passes have raised since the last one that did not."""
        return self._num_failures_in_a_row

    def add(self, message: AddRequest) -> str | None:
        """Queue a request; return why it can not be taken, or None. The front has checked it; this is the net below."""
        limit = self._scheduler.limits.max_model_len
        if not message.prompt_token_ids:
            return "prompt is empty; at least 1 token is needed"
        if len(message.prompt_token_ids) >= limit:
            return f"prompt has {len(message.prompt_token_ids)} tokens; with one token of output the limit is {limit}"
        self._scheduler.add(
            Request(message.request_id, message.prompt_token_ids, message.sampling, arrival_s=self._clock())
        )
        return None

    def abort(self, request_ids: list[str]) -> list[TokenOutput]:
        """Free these requests at once; return the last message of each that was known."""
        known = [request_id for request_id in request_ids if self._scheduler.remove(request_id)]
        return [TokenOutput(request_id, [], "abort") for request_id in known]

    def abort_all(self) -> list[TokenOutput]:
        """Free every request."""
        return self.abort(self._scheduler.request_ids)

    def step(self) -> StepOutputs | None:
        """Run one forward pass; None if there is nothing to do. Never raises for a failing forward pass."""
        batch = self._scheduler.schedule()
        if batch is None:
            return None
        try:
            sampled = self._executor.execute_model(batch)
        except Exception as error:  # noqa: BLE001  whatever a model raises may cost its own batch only
            self._num_failures_in_a_row += 1
            return self._fail(batch, error)
        self._num_failures_in_a_row = 0
        progress = self._scheduler.commit(batch, sampled)
        return self.outputs([self._token_output(item) for item in progress])

    def outputs(self, outputs: list[TokenOutput], failed: dict[str, str] | None = None) -> StepOutputs:
        """Return a message with these outputs and the present load."""
        scheduler = self._scheduler
        return StepOutputs(
            outputs=outputs,
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            kv_cache_usage=scheduler.blocks.usage,
            failed=failed or {},
        )

    def check_integrity(self) -> None:
        """Recount the blocks; when nothing runs none may be used. Raises RuntimeError with the numbers."""
        blocks = self._scheduler.blocks
        blocks.check_integrity()
        if not self.has_work and blocks.num_used:
            raise RuntimeError(f"{blocks.num_used} blocks are held though no request is left: {blocks!r}")

    def _fail(self, batch: Batch, error: Exception) -> StepOutputs:
        logger.error("forward pass over %d sequences failed", len(batch.sequences), exc_info=error)
        for request_id in batch.request_ids:
            self._scheduler.remove(request_id)
        why = f"the forward pass failed: {type(error).__name__}: {error}"
        return self.outputs([], dict.fromkeys(batch.request_ids, why))

    def _token_output(self, progress: Progress) -> TokenOutput:
        request, sampled = progress.request, progress.sampled
        logprobs = None if sampled.logprobs is None else [sampled.logprobs]
        queue_s, prefill_s = self._first_token_times(request)
        return TokenOutput(
            request.request_id,
            [sampled.token_id],
            progress.finish_reason,
            logprobs,
            queue_seconds=queue_s,
            prefill_seconds=prefill_s,
        )

    def _first_token_times(self, request: Request) -> tuple[float, float]:
        """Return seconds in the queue and in prefill with the first output token, zeros afterwards."""
        if len(request.output_token_ids) > 1:
            return 0.0, 0.0
        assert request.first_scheduled_s is not None, "a token came from a request that was scheduled"
        return request.first_scheduled_s - request.arrival_s, self._clock() - request.first_scheduled_s
