"""vLLM's core as the engine that our controller steps: requests in, one message for each step out."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from dormouse_worker.common.errors import WorkerError
from dormouse_worker.common.ipc import Added, AddRequest, Sampling, StepOutputs, TokenOutput
from dormouse_worker.engine.controller import MAX_FAILURES_IN_A_ROW
from dormouse_worker.engine.executor import Executor
from dormouse_worker.engine.images.encoder_cache import EncoderCache
from dormouse_worker.engine.no_keeper import NoKeeper
from dormouse_worker.engine.token_outputs import MAX_LOGPROBS_PER_OUTPUT
from dormouse_worker.foreign.vllm.interface import Core, Piece, Step
from dormouse_worker.foreign.vllm.logprobs import parts, to_logprobs
from dormouse_worker.foreign.vllm.requests import to_vllm, why_not

logger = logging.getLogger(__name__)


class VllmStepper:
    """Implements `Stepper`. Owns which requests are unfinished."""

    def __init__(self, core: Core, max_model_len: int) -> None:
        self._core = core
        self._max_model_len = max_model_len
        self._unfinished: dict[str, Sampling] = {}
        self.num_failures_in_a_row = 0
        self.num_odd_in_a_row = 0  # vLLM does not look at its logits
        self.keeper, self.images = NoKeeper(), EncoderCache()

    def __repr__(self) -> str:
        return f"VllmStepper({self.num_requests} requests)"

    @property
    def has_work(self) -> bool:
        """See `Stepper`."""
        return self._core.has_work()

    @property
    def num_requests(self) -> int:
        """See `Stepper`."""
        return len(self._unfinished)

    @property
    def cached_blocks(self) -> tuple[int, ...]:
        """See `Stepper`. None of them can be kept."""
        return ()

    def add(self, message: Added) -> str | None:
        """See `Stepper`."""
        if why := why_not(message, self._max_model_len):
            return why
        assert isinstance(message, AddRequest), "why_not has seen to it"
        try:
            self._core.add(to_vllm(message))
        except ValueError as error:
            return f"vLLM refuses the request: {error}"
        self._unfinished[message.request_id] = message.sampling
        return None

    def abort(self, request_ids: list[str]) -> list[TokenOutput]:
        """See `Stepper`."""
        known = [request_id for request_id in request_ids if self._unfinished.pop(request_id, None) is not None]
        if known:
            self._core.abort(known)
        return [TokenOutput(request_id, [], "abort") for request_id in known]

    def abort_all(self) -> list[TokenOutput]:
        """See `Stepper`."""
        return self.abort([*self._unfinished])

    def step(self) -> StepOutputs | None:
        """See `Stepper`. After a step that raised the process has to go: what vLLM computed then is unknown."""
        if not self._core.has_work():
            return None
        running = self._core.load_now().running_ids
        try:
            step = self._core.step()
        except Exception as error:
            logger.exception("vLLM's step failed")
            self.num_failures_in_a_row = MAX_FAILURES_IN_A_ROW
            return self._fail(running, f"the step failed: {type(error).__name__}: {error}")
        return self._tell(step)

    def settle(self) -> Iterator[StepOutputs]:
        """See `Stepper`. A command may come between any two steps, but vLLM forgets who has ended in the next one."""
        while not self._unfinished and self._core.has_work():
            yield self._tell(self._core.step())

    def is_leaving(self, request_id: str) -> bool:
        """See `Stepper`."""
        del request_id  # what is aborted is gone
        return False

    def give_up(self, why: str) -> StepOutputs:
        """See `Stepper`."""
        return self.outputs([], {output.request_id: why for output in self.abort_all()})

    def outputs(
        self,
        outputs: list[TokenOutput],
        failed: dict[str, str] | None = None,
        *,
        refused: dict[str, str] | None = None,
        num_odd: int = 0,
        counted: Step | None = None,
    ) -> StepOutputs:
        """See `Stepper`."""
        load = self._core.load_now()
        return StepOutputs(
            outputs,
            running=len(load.running_ids),
            waiting=load.num_waiting,
            kv_cache_usage=load.kv_cache_usage,
            failed=failed or {},
            refused=refused or {},
            not_finite=num_odd,
            prefix_queries=counted.prefix_queries if counted else 0,
            prefix_hits=counted.prefix_hits if counted else 0,
            preemptions=counted.preemptions if counted else 0,
        )

    def forget_ranks(self) -> None:
        """See `Stepper`. There are none that know anything."""

    def forget_prefixes(self) -> None:
        """See `Stepper`."""
        self._core.reset_prefix_cache()

    def verify(self, executor: Executor) -> str:
        """See `Stepper`."""
        try:
            executor.verify()
        except WorkerError as error:
            return str(error)
        return ""

    def check_integrity(self) -> None:
        """Nothing runs for us that does not run for vLLM. Raises RuntimeError."""
        if self._unfinished:
            raise RuntimeError(f"vLLM is idle, and {len(self._unfinished)} requests are unfinished")

    def _tell(self, step: Step) -> StepOutputs:
        known = [piece for piece in step.pieces if piece.request_id in self._unfinished]
        failed = {piece.request_id: "vLLM ended it with an error" for piece in known if piece.finish_reason == "error"}
        outputs = [each for piece in known if piece.request_id not in failed for each in self._outputs(piece)]
        for piece in known:
            if piece.finish_reason:
                del self._unfinished[piece.request_id]
        return self.outputs(outputs, failed, counted=step)

    def _outputs(self, piece: Piece) -> Iterator[TokenOutput]:
        sampling = self._unfinished[piece.request_id]
        if (asked := sampling.prompt_logprobs) is not None:
            for part in parts(piece.prompt_logprobs, MAX_LOGPROBS_PER_OUTPUT):
                yield TokenOutput(piece.request_id, [], prompt_logprobs=to_logprobs(part, asked))
        yield TokenOutput(
            piece.request_id,
            piece.token_ids,
            piece.finish_reason or None,
            to_logprobs(piece.logprobs, sampling.logprobs) if sampling.logprobs is not None else None,
            queue_seconds=piece.queue_seconds,
            prefill_seconds=piece.prefill_seconds,
            cached_tokens=piece.cached_tokens,
        )

    def _fail(self, request_ids: Sequence[str], why: str) -> StepOutputs:
        """Tell those who were computed; the others are lost with the process, and may be asked for again elsewhere."""
        failed = {request_id: why for request_id in request_ids if self._unfinished.pop(request_id, None) is not None}
        return StepOutputs([], running=0, waiting=len(self._unfinished), kv_cache_usage=0.0, failed=failed)
