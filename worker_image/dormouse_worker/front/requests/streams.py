"""One sequence's way from the engine's tokens to the caller's messages. Bounded memory; knows neither gRPC nor sockets.

The engine's side pushes, at once and without waiting; the caller's side takes when it can. A caller that reads slowly,
or asks for it by an interval, gets larger pieces, and nobody else waits for it: what is kept is at most the sequence's
own output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from dormouse_api.status import CallError
from dormouse_worker.common.ipc import TokenLogprobs, TokenOutput
from dormouse_worker.front.text.assembly import Resumed, TextAssembly

# Both keep a piece below the message limit: positions with 20 log-probabilities each and characters of 4 bytes.
MAX_POSITIONS_PER_PIECE = 1024
MAX_CHARS_PER_PIECE = 1 << 16


class Piece(msgspec.Struct, gc=False):
    """What the caller gets in one message."""

    text: str = ""
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []  # of the positions after the piece before
    completion_tokens: int = 0  # running count
    finish_reason: str | None = None  # stop | length | abort; set = the last piece
    matched_stop: str | None = None

    @property
    def is_full(self) -> bool:
        """Return whether what comes next must begin another piece."""
        num_positions = len(self.token_ids) + len(self.prompt_logprobs)
        return num_positions >= MAX_POSITIONS_PER_PIECE or len(self.text) >= MAX_CHARS_PER_PIECE


@dataclass(slots=True)
class Times:
    """When things happened to a request, in seconds of the front's clock."""

    arrival_s: float
    first_token_s: float | None = None
    last_token_s: float | None = None
    queue_s: float = 0.0  # both as the engine measured them
    prefill_s: float = 0.0

    @property
    def decode_s(self) -> float:
        """Return the time from the first token to the last."""
        return (self.last_token_s or 0.0) - (self.first_token_s or 0.0)


class OutputStream:
    """Owns one sequence's output until the caller took it. Ends in exactly one last piece or one error."""

    def __init__(
        self,
        assembly: TextAssembly,
        times: Times,
        *,
        clock: Callable[[], float],
        on_due: Callable[[], None] = lambda: None,
        choice_index: int = 0,
        interval: int = 1,
    ) -> None:
        """`on_due` is called whenever there is something to take.

        A piece waits for `interval` tokens, but for the first one and the last.
        """
        self._assembly = assembly
        self._clock = clock
        self._on_due = on_due
        self._interval = interval
        self._has_given_tokens = False
        self._pieces: deque[Piece] = deque()
        self.choice_index = choice_index
        self.times = times
        self.cached_tokens = 0  # prompt tokens that the prefix cache had
        self.accepted_prediction_tokens = 0  # of what the caller predicted, tried and right
        self.rejected_prediction_tokens = 0
        self.draft_tokens = self.accepted_draft_tokens = 0  # proposed, and of these taken
        self.is_started = False  # the engine has said something of it
        self.is_finished = False  # nothing more will be pushed
        self.finish_reason: str | None = None
        self.error: CallError | None = None

    def __repr__(self) -> str:
        return f"OutputStream({self.num_tokens} tokens, {len(self._pieces)} pieces, finished={self.is_finished})"

    @property
    def is_due(self) -> bool:
        """Return whether there is a piece, and it waits for no more tokens."""
        if not self._pieces:
            return False
        waits = self._has_given_tokens and 0 < len(self._pieces[0].token_ids) < self._interval
        return not waits or len(self._pieces) > 1 or self.is_finished

    @property
    def num_tokens(self) -> int:
        """Return how many tokens came so far, resumed ones included."""
        return self._assembly.num_tokens

    def begin_with(self, resumed: Resumed) -> None:
        """Give out what the caller lacks of a resumed sequence, and its end if it had ended."""
        for start in range(0, len(resumed.text), MAX_CHARS_PER_PIECE):
            text = resumed.text[start : start + MAX_CHARS_PER_PIECE]
            self._pieces.append(Piece(text, completion_tokens=self.num_tokens))
        if resumed.finish_reason is not None:
            self._finish(self._open_piece(), resumed.finish_reason, resumed.matched_stop)
        self._on_due()

    def push(self, output: TokenOutput) -> int:
        """Take what one step produced, and return how many tokens count: none after a stop string.

        Ends the stream when the engine says so or a stop string matched.
        """
        if self.is_finished:
            return 0
        assembly = self._assembly
        num_before = assembly.num_tokens
        self._note_times(output)
        self.accepted_prediction_tokens += output.accepted_prediction_tokens
        self.rejected_prediction_tokens += output.rejected_prediction_tokens
        self.draft_tokens += output.draft_tokens
        self.accepted_draft_tokens += output.accepted_draft_tokens
        for logprobs in output.prompt_logprobs or ():
            self._open_piece().prompt_logprobs.append(logprobs)
        self._add_tokens(output)
        if assembly.matched_stop is not None:
            self._finish(self._open_piece(), "stop", assembly.matched_stop)
        elif output.finish_reason is not None:
            is_abort = output.finish_reason == "abort"
            piece = self._new_piece() if is_abort and not output.token_ids else self._open_piece()  # gateways drop it
            piece.text += assembly.break_off() if is_abort else assembly.flush()
            self._finish(piece, "stop" if assembly.matched_stop else output.finish_reason, assembly.matched_stop)
        if self.is_due:
            self._on_due()
        return assembly.num_tokens - num_before

    def fail(self, error: CallError) -> None:
        """End with an error, after what was pushed before; nothing happens if the stream has ended."""
        if not self.is_finished:
            self.error, self.is_finished = error, True
            self._on_due()

    def pop(self) -> Piece | None:
        """Return as much of what is there as fits one message, None if nothing is due."""
        if not self.is_due:
            return None
        piece = self._pieces.popleft()
        self._has_given_tokens = self._has_given_tokens or bool(piece.token_ids)
        return piece

    def _add_tokens(self, output: TokenOutput) -> None:
        """Write the tokens into pieces, up to the one whose text ends with a stop string."""
        assembly, last = self._assembly, len(output.token_ids) - 1
        for position, token_id in enumerate(output.token_ids):
            text = assembly.step(token_id, is_end=position == last and output.finish_reason == "stop")
            piece = self._open_piece()
            piece.text += text
            piece.token_ids.append(token_id)
            piece.completion_tokens = assembly.num_tokens
            if output.logprobs:
                piece.logprobs.append(output.logprobs[position])
            if assembly.matched_stop is not None:
                return

    def _open_piece(self) -> Piece:
        if self._pieces and not self._pieces[-1].is_full:
            return self._pieces[-1]
        return self._new_piece()

    def _new_piece(self) -> Piece:
        piece = Piece(completion_tokens=self._assembly.num_tokens)
        self._pieces.append(piece)
        return piece

    def _finish(self, piece: Piece, reason: str, matched_stop: str | None) -> None:
        self.finish_reason = piece.finish_reason = reason
        piece.matched_stop = matched_stop
        self.is_finished = True

    def _note_times(self, output: TokenOutput) -> None:
        """Note when tokens came, and what only the outputs up to the first token tell."""
        self.is_started = True
        times = self.times
        is_begun = times.first_token_s is not None
        if output.token_ids:
            times.last_token_s = self._clock()
        if is_begun:
            return
        times.first_token_s = times.last_token_s
        times.queue_s = max(times.queue_s, output.queue_seconds)
        times.prefill_s = max(times.prefill_s, output.prefill_seconds)
        self.cached_tokens = max(self.cached_tokens, output.cached_tokens)
