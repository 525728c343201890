"""The step where passes read sound: give windows places, encode one, compute a token of each, tell those that are done.

    waiting --a place is free--> encoded, beside the rows of all others --tokens--> told, and the place is free

A place in the cache is what one window needs: the encoded states in the form in which each layer attends to them, and
the keys and values of its tokens. The agreed blocks are these places. At most one window is encoded in a pass, so that
others wait for no more than that. Nothing of a window is kept after its end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

from msgspec.structs import replace

from dormouse_worker.common.errors import GroupBroken
from dormouse_worker.common.ipc import Added, StepOutputs
from dormouse_worker.common.task_messages import AddWindow, WindowOutput
from dormouse_worker.engine.executor import Executor
from dormouse_worker.engine.images.encoder_cache import EncoderCache
from dormouse_worker.engine.no_keeper import NoKeeper
from dormouse_worker.engine.speech.batch import EncodeWindow, SpeechBatch, SpeechOutput
from dormouse_worker.engine.speech.executor import SpeechExecutor
from dormouse_worker.engine.speech.window import NO_PLACE, Window
from dormouse_worker.engine.verification import complaint_of

logger = logging.getLogger(__name__)

NOT_FINITE = (
    "the model's logits are not finite: its weights or the device are damaged, or its numbers grow too large for its "
    "dtype"
)


@dataclass(frozen=True, slots=True)
class SpeechLimits:
    """What there is room for."""

    num_places: int  # windows at once: the agreed blocks
    max_model_len: int  # tokens of a window, prompt and output together


class SpeechEngine:
    """Turns windows of sound into tokens, one pass per step. Implements `engine.stepping.Stepper`."""

    def __init__(self, executor: SpeechExecutor, limits: SpeechLimits, clock: Callable[[], float]) -> None:
        self.keeper, self.images = NoKeeper(), EncoderCache()  # nothing outlives a window
        self._executor = executor
        self._limits = limits
        self._clock = clock
        self._numbers = count()
        self._windows: dict[str, Window] = {}
        self._free = list(range(limits.num_places))[::-1]
        self.num_failures_in_a_row = 0  # passes that raised since the last good one
        self.num_odd_in_a_row = 0  # of which no logits were finite

    def __repr__(self) -> str:
        return f"SpeechEngine({self.num_requests} windows, {len(self._free)} of {self._limits.num_places} places free)"

    @property
    def has_work(self) -> bool:
        """Return whether any window is unfinished."""
        return bool(self._windows)

    @property
    def num_requests(self) -> int:
        """Return how many windows are unfinished."""
        return len(self._windows)

    @property
    def cached_blocks(self) -> tuple[int, ...]:
        """Return nothing: no place holds anything for later."""
        return ()

    def add(self, message: Added) -> str | None:
        """Queue a window; return why it cannot be taken, or None. The front has checked it; this is the net below."""
        if not isinstance(message, AddWindow):
            return "the model turns sound into text, and nothing else"
        num_prompt, params = len(message.prompt_token_ids), message.params
        if not 0 <= message.start_place < num_prompt - bool(message.language_ids):
            return f"start_place is {message.start_place}; the prompt has {num_prompt} tokens"
        if params.max_tokens < 1 or num_prompt + params.max_tokens > self._limits.max_model_len:
            limit = self._limits.max_model_len
            return f"{num_prompt} tokens of prompt and {params.max_tokens} of output; the limit is {limit} together"
        if not params.temperatures:
            return "temperatures is empty; at least 1 is needed"
        order = (message.priority, next(self._numbers))
        self._windows[message.request_id] = Window(message, order, self._clock())
        return None

    def abort(self, request_ids: list[str]) -> list[WindowOutput]:
        """Forget these windows; return the last message of each that was known."""
        known = [request_id for request_id in request_ids if request_id in self._windows]
        for request_id in known:
            self._forget(request_id)
        return [WindowOutput(request_id, [], finish_reason="abort") for request_id in known]

    def abort_all(self) -> list[WindowOutput]:
        """Forget every window."""
        return self.abort(list(self._windows))

    def step(self) -> StepOutputs | None:
        """Run one pass; None if there is nothing to do. A failing pass raises only GroupBroken."""
        if not self._windows:
            return None
        encode = self._admit()
        running = [window for window in self._windows.values() if window.place != NO_PLACE]
        rows = tuple(window.row() for window in running)
        try:
            output = self._executor.execute_speech(SpeechBatch(rows, encode))
        except GroupBroken:
            raise
        except Exception as error:  # noqa: BLE001  whatever a model raises may cost its own pass only
            return self._fail(running, error)
        self.num_failures_in_a_row = 0
        odd = self._end_odd(running, output)
        refused = self._end_unreadable(running, output)
        return self.outputs(list(self._keep(running, output)), odd | refused, num_odd=len(odd))

    def settle(self) -> Iterator[StepOutputs]:
        """Yield nothing: a step leaves nothing under way."""
        yield from ()

    def is_leaving(self, request_id: str) -> bool:
        """Return False: a window that ended is in no pass."""
        del request_id
        return False

    def give_up(self, why: str) -> StepOutputs:
        """End every window with an error."""
        return self.outputs([], self._end(list(self._windows), why))

    def outputs(
        self,
        outputs: list[WindowOutput],
        failed: dict[str, str] | None = None,
        *,
        refused: dict[str, str] | None = None,
        num_odd: int = 0,
    ) -> StepOutputs:
        """Return a message with these outputs and the present load."""
        num_running = self._limits.num_places - len(self._free)
        return StepOutputs(
            outputs=[],
            running=num_running,
            waiting=len(self._windows) - num_running,
            kv_cache_usage=num_running / self._limits.num_places,
            failed=failed or {},
            refused=refused or {},
            not_finite=num_odd,
            windows=outputs,
        )

    def forget_ranks(self) -> None:
        """Do nothing: ranks know nothing of windows."""

    def forget_prefixes(self) -> None:
        """Do nothing: there are none."""

    def verify(self, executor: Executor) -> str:
        """Have the model repeat its golden tokens; return what is wrong with it, "" = nothing."""
        complaint = complaint_of(executor)
        if not complaint:
            self.num_odd_in_a_row = 0
        return complaint

    def check_integrity(self) -> None:
        """Raise RuntimeError unless each place is free or one window's."""
        taken = [window.place for window in self._windows.values() if window.place != NO_PLACE]
        if sorted(taken + self._free) != list(range(self._limits.num_places)):
            raise RuntimeError(f"places {taken} are taken, {self._free} are free, of {self._limits.num_places}")

    def _admit(self) -> tuple[EncodeWindow, ...]:
        """Give the window that waits at the head of the line a place, if one is free; return what to encode."""
        waiting = [window for window in self._windows.values() if window.place == NO_PLACE]
        if not waiting or not self._free:
            return ()
        first = min(waiting, key=lambda window: window.order)
        first.place, first.first_scheduled_s = self._free.pop(), self._clock()
        return (EncodeWindow(first.place, first.message.tensors),)

    def _keep(self, running: list[Window], output: SpeechOutput) -> Iterator[WindowOutput]:
        """Note the tokens; yield the message of each window that is done."""
        for window, token in zip(running, output.tokens, strict=True):
            request_id = window.message.request_id
            if request_id not in self._windows:
                continue
            told = window.take(token)
            if told is not None:
                self._forget(request_id)
                yield replace(told, prefill_seconds=self._clock() - window.first_scheduled_s)

    def _end_odd(self, running: list[Window], output: SpeechOutput) -> dict[str, str]:
        """Forget the windows whose logits are not finite; return them with the reason."""
        self.num_odd_in_a_row = self.num_odd_in_a_row + 1 if len(output.not_finite) == len(running) else 0
        return self._end([running[place].message.request_id for place in output.not_finite], NOT_FINITE)

    def _end_unreadable(self, running: list[Window], output: SpeechOutput) -> dict[str, str]:
        failed = {
            window.message.request_id: output.unreadable[window.place]
            for window in running
            if window.place in output.unreadable and window.message.request_id in self._windows
        }
        for request_id, why in failed.items():
            self._end([request_id], why)
        return failed

    def _fail(self, running: list[Window], error: Exception) -> StepOutputs:
        logger.error("a pass over %d windows failed", len(running), exc_info=error)
        self.num_failures_in_a_row += 1
        why = f"the forward pass failed: {type(error).__name__}: {error}"
        return self.outputs([], self._end([window.message.request_id for window in running], why))

    def _end(self, request_ids: list[str], why: str) -> dict[str, str]:
        for request_id in request_ids:
            logger.error("window %s ends: %s", request_id, why)
            self._forget(request_id)
        return dict.fromkeys(request_ids, why)

    def _forget(self, request_id: str) -> None:
        window = self._windows.pop(request_id)
        if window.place != NO_PLACE:
            self._free.append(window.place)
