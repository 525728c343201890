"""The step where passes give vectors: take texts from the line, compute, tell calls that are complete.

Calls wait in line by priority, then by arrival. A pass takes texts from the head of the line, several of one call or of
several, until it has as many tokens or texts as a pass may have: fewer beside more urgent calls, see `pace`. Nothing of
a text is kept after its pass.

A step computes a few milliseconds of a pass. Who comes then and is more urgent than all in it has a pass of its own,
above it, which ends first.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count

from dormouse_worker.common.errors import GroupBroken
from dormouse_worker.common.ipc import Added, StepOutputs
from dormouse_worker.common.task_messages import AddPooling, PooledOutput
from dormouse_worker.engine.executor import Executor
from dormouse_worker.engine.images.encoder_cache import EncoderCache
from dormouse_worker.engine.no_keeper import NoKeeper
from dormouse_worker.engine.pooling.batch import PoolingOutput
from dormouse_worker.engine.pooling.executor import PoolingExecutor
from dormouse_worker.engine.pooling.pace import Pace
from dormouse_worker.engine.pooling.passes import Call, Pass, Taken
from dormouse_worker.engine.verification import complaint_of

logger = logging.getLogger(__name__)

STEP_S = 0.004  # of a pass, before messages are looked at again
MOST_PASSES = 2  # under way at once; each keeps the rows of its texts
NOT_FINITE = (
    "the model's vectors are not finite: its weights or the device are damaged, or its numbers grow too large for its "
    "dtype"
)


@dataclass(frozen=True, slots=True)
class PoolingLimits:
    """What a pass and a text may have."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int


class PoolingEngine:
    """Turns calls into vectors, one forward pass per step. Implements `engine.stepping.Stepper`."""

    def __init__(self, executor: PoolingExecutor, limits: PoolingLimits, clock: Callable[[], float]) -> None:
        self.keeper, self.images = NoKeeper(), EncoderCache()  # nothing is cached
        self._executor = executor
        self._limits = limits
        self._clock = clock
        self._numbers = count()
        self._calls: dict[str, Call] = {}
        self._pace = Pace()
        self._passes: list[Pass] = []  # the last is computed; one below it has stopped
        self.num_failures_in_a_row = 0  # forward passes that raised since the last good one
        self.num_odd_in_a_row = 0  # of which no vector was finite

    def __repr__(self) -> str:
        return f"PoolingEngine({self.num_requests} calls)"

    @property
    def has_work(self) -> bool:
        """Return whether any call is unfinished."""
        return bool(self._calls)

    @property
    def num_requests(self) -> int:
        """Return how many calls are unfinished."""
        return len(self._calls)

    @property
    def cached_blocks(self) -> tuple[int, ...]:
        """Return nothing: no block holds anything."""
        return ()

    def add(self, message: Added) -> str | None:
        """Queue a call; return why it cannot be taken, or None. The front has checked it; this is the net below."""
        if not isinstance(message, AddPooling):
            return "the model makes vectors, and no text"
        limit = self._limits.max_model_len
        if not message.inputs or not all(message.inputs):
            return "a text is empty; at least 1 token is needed"
        if (longest := max(map(len, message.inputs))) > limit:
            return f"a text has {longest} tokens; the limit is {limit}"
        if message.second_starts and len(message.second_starts) != len(message.inputs):
            return f"second_starts has {len(message.second_starts)} places for {len(message.inputs)} texts"
        now_s, order = self._clock(), (message.priority, next(self._numbers))
        if any(call.message.priority > message.priority for call in self._calls.values()):
            self._pace.urge(now_s)
        self._calls[message.request_id] = Call(message, order, now_s)
        return None

    def abort(self, request_ids: list[str]) -> list[PooledOutput]:
        """Forget these calls; return the last message of each that was known."""
        known = [request_id for request_id in request_ids if self._calls.pop(request_id, None)]
        self._leave_unwanted()
        return [PooledOutput(request_id, [], "abort") for request_id in known]

    def abort_all(self) -> list[PooledOutput]:
        """Forget every call."""
        return self.abort(list(self._calls))

    def step(self) -> StepOutputs | None:
        """Compute for milliseconds; return what came of a pass that ended. One that fails raises only GroupBroken."""
        if len(self._passes) < MOST_PASSES and (taken := self._take()):
            self._passes.append(Pass(taken))
        return self._go_on(STEP_S) if self._passes else None

    def settle(self) -> Iterator[StepOutputs]:
        """Yield what comes of the passes under way."""
        while self._passes:
            outputs = self._go_on(math.inf)
            assert outputs is not None, "it has all the time that it wants"
            yield outputs

    def is_leaving(self, request_id: str) -> bool:
        """Return False: a call that ended is in no pass."""
        del request_id
        return False

    def give_up(self, why: str) -> StepOutputs:
        """End every call with an error."""
        ended, self._calls = list(self._calls), {}
        self._leave_unwanted()
        return self.outputs([], dict.fromkeys(ended, why))

    def outputs(
        self,
        outputs: list[PooledOutput],
        failed: dict[str, str] | None = None,
        *,
        refused: dict[str, str] | None = None,
        num_odd: int = 0,
    ) -> StepOutputs:
        """Return a message with these outputs and the present load."""
        running = sum(call.num_taken > 0 for call in self._calls.values())
        return StepOutputs(
            outputs=[],
            running=running,
            waiting=len(self._calls) - running,
            kv_cache_usage=0.0,
            failed=failed or {},
            refused=refused or {},
            not_finite=num_odd,
            pooled=outputs,
        )

    def forget_ranks(self) -> None:
        """Do nothing: ranks know nothing of calls."""

    def forget_prefixes(self) -> None:
        """Do nothing: there are none."""

    def verify(self, executor: Executor) -> str:
        """Have the model repeat its golden vectors; return what is wrong with it, "" = nothing."""
        complaint = complaint_of(executor)
        if not complaint:
            self.num_odd_in_a_row = 0
        return complaint

    def check_integrity(self) -> None:
        """Raise RuntimeError for a call that is complete and still here, and for a pass that nobody waits for."""
        if ended := [call.message.request_id for call in self._calls.values() if call.is_complete]:
            raise RuntimeError(f"calls are complete and were not told: {ended}")
        if unwanted := [each for each in self._passes if not any(map(self._has, each.calls))]:
            raise RuntimeError(f"passes are under way for nobody: {unwanted}")

    def _take(self) -> Taken:
        """Return the texts of the next pass: at least one, if any waits that is more urgent than what is under way."""
        taken: Taken = []
        below = self._passes[-1] if self._passes else None
        num_tokens, now_s = 0, self._clock()
        limit = self._limits.max_model_len if below else self._limits.max_num_batched_tokens
        most, is_urged = self._pace.most_tokens(limit, now_s), self._pace.is_urged(now_s)
        for call in sorted(self._calls.values(), key=lambda call: call.order):
            if below is not None and call.message.priority >= below.priority:
                return taken
            if taken and is_urged and call.message.priority > taken[0][0].message.priority:
                return taken
            for place in range(len(call.vectors), len(call.message.inputs)):
                num_tokens += len(call.message.inputs[place])
                if taken and (num_tokens > most or len(taken) == self._limits.max_num_seqs):
                    return taken
                taken.append((call, place))
                call.num_taken = place + 1
                call.first_scheduled_s = now_s if call.first_scheduled_s is None else call.first_scheduled_s
        return taken

    def _go_on(self, seconds: float) -> StepOutputs | None:
        """Compute the uppermost pass for so long; return what came of it, None = there is more."""
        current = self._passes[-1]
        try:
            output = current.advance(self._executor, seconds, self._clock)
        except GroupBroken:
            raise
        except Exception as error:  # noqa: BLE001  whatever a model raises may cost its own pass only
            self._passes.pop()
            return self._fail(current.taken, error)
        if output is None:
            return None
        self._passes.pop()
        self.num_failures_in_a_row = 0
        self._pace.note(current.num_tokens, current.seconds)
        odd = self._end_odd(current.taken, output)
        return self.outputs(list(self._keep(current.taken, output)), odd, num_odd=len(odd))

    def _has(self, call: Call) -> bool:
        """Return whether a call is unfinished; another one may have its name."""
        return self._calls.get(call.message.request_id) is call

    def _leave_unwanted(self) -> None:
        """Drop the passes whose calls are all gone."""
        wanted = [each for each in self._passes if any(map(self._has, each.calls))]
        for each in self._passes:
            if each not in wanted:
                each.leave()
        self._passes = wanted

    def _keep(self, taken: Taken, output: PoolingOutput) -> Iterator[PooledOutput]:
        """Note the vectors; yield the message of each call that has all of its own."""
        for (call, _), vector in zip(taken, output.vectors, strict=True):
            if not self._has(call):
                continue
            call.vectors.append(vector)
            if call.is_complete:
                del self._calls[call.message.request_id]
                yield self._told(call)

    def _told(self, call: Call) -> PooledOutput:
        assert call.first_scheduled_s is not None, "its vectors came from passes"
        return PooledOutput(
            call.message.request_id,
            call.vectors,
            queue_seconds=call.first_scheduled_s - call.arrival_s,
            prefill_seconds=self._clock() - call.first_scheduled_s,
        )

    def _end_odd(self, taken: Taken, output: PoolingOutput) -> dict[str, str]:
        """Forget the calls with vectors that are not finite; return them with the reason."""
        self.num_odd_in_a_row = self.num_odd_in_a_row + 1 if len(output.not_finite) == len(taken) else 0
        return self._end((taken[place][0] for place in output.not_finite), NOT_FINITE)

    def _fail(self, taken: Taken, error: Exception) -> StepOutputs:
        logger.error("forward pass over %d texts failed", len(taken), exc_info=error)
        self.num_failures_in_a_row += 1
        why = f"the forward pass failed: {type(error).__name__}: {error}"
        return self.outputs([], self._end((call for call, _ in taken), why))

    def _end(self, calls: Iterable[Call], why: str) -> dict[str, str]:
        ended = sorted({call.message.request_id for call in calls if self._has(call)})
        for request_id in ended:
            logger.error("call %s ends: %s", request_id, why)
            del self._calls[request_id]
        return dict.fromkeys(ended, why)
