"""One request's way from the engine's tokens to the caller's messages. Bounded memory; knows neither gRPC nor sockets.

The engine's side pushes, at once and without waiting; the caller's side takes when it can. A caller that reads slowly
gets larger pieces, and nobody else waits for it: what is kept is at most the request's own output.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dormouse_api.status import CallError
from dormouse_worker.front.stops import Found, StopSearch
from dormouse_worker.front.text import Decoder
from dormouse_worker.ipc import TokenLogprobs, TokenOutput

MAX_TOKENS_PER_PIECE = 1024  # keeps a piece with 20 log-probabilities per token below the message limit


@dataclass(slots=True)
class Piece:
    """What the caller gets in one message."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    completion_tokens: int = 0  # running count
    finish_reason: str | None = None  # stop | length | abort; set = the last piece
    matched_stop: str | None = None

    def join(self, later: Piece) -> None:
        """Append a later piece."""
        self.text += later.text
        self.token_ids += later.token_ids
        self.logprobs += later.logprobs
        self.completion_tokens = later.completion_tokens
        self.finish_reason = later.finish_reason
        self.matched_stop = later.matched_stop


@dataclass(slots=True)
class Times:
    """When things happened to a request, in seconds of the front's clock."""

    arrival_s: float
    first_token_s: float | None = None
    last_token_s: float | None = None
    queue_s: float = 0.0  # both as the engine measured them
    prefill_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TextRules:
    """How tokens become text, and which text ends it."""

    decoder: Decoder
    stops: Sequence[str] = ()
    include_stop: bool = False
    min_tokens: int = 0


class OutputStream:
    """Owns one request's output until the caller took it. Ends in exactly one last piece or one error."""

    def __init__(self, rules: TextRules, times: Times, *, clock: Callable[[], float]) -> None:
        self._rules = rules
        self._search = StopSearch(rules.stops, include_in_output=rules.include_stop)
        self._clock = clock
        self._pieces: deque[Piece] = deque()
        self._error: CallError | None = None
        self._ready = asyncio.Event()
        self._num_tokens = 0
        self.times = times
        self.finish_reason: str | None = None

    def __repr__(self) -> str:
        return f"OutputStream({self._num_tokens} tokens, {len(self._pieces)} pieces, finished={self.is_finished})"

    @property
    def is_finished(self) -> bool:
        """Return whether nothing more will be pushed."""
        return self.finish_reason is not None or self._error is not None

    @property
    def is_started(self) -> bool:
        """Return whether the engine has produced anything."""
        return self._num_tokens > 0

    @property
    def num_tokens(self) -> int:
        """Return how many tokens came so far."""
        return self._num_tokens

    def push(self, output: TokenOutput) -> None:
        """Take what one step produced. Ends the stream when the engine says so or a stop string matched."""
        if self.is_finished:
            return
        self._note_times(output)
        piece = self._to_piece(output)
        self.finish_reason = piece.finish_reason
        self._pieces.append(piece)
        self._ready.set()

    def fail(self, error: CallError) -> None:
        """End with an error, after what was pushed before; nothing happens if the stream has ended."""
        if not self.is_finished:
            self._error = error
            self._ready.set()

    async def take(self) -> Piece:
        """Return everything that is there, as one piece; wait if there is nothing. Raises the error at the end."""
        while not self._pieces:
            if self._error is not None:
                raise self._error
            self._ready.clear()
            await self._ready.wait()
        piece = self._pieces.popleft()
        while self._pieces and len(piece.token_ids) < MAX_TOKENS_PER_PIECE:
            piece.join(self._pieces.popleft())
        return piece

    def _to_piece(self, output: TokenOutput) -> Piece:
        piece = Piece(completion_tokens=self._num_tokens, finish_reason=output.finish_reason)
        logprobs = output.logprobs or []
        last = len(output.token_ids) - 1
        for position, token_id in enumerate(output.token_ids):
            self._num_tokens += 1
            is_end = output.finish_reason == "stop" and position == last
            found = self._to_text(token_id, is_end_token=is_end)
            piece.token_ids.append(token_id)
            piece.logprobs += logprobs[position : position + 1]
            piece.text += found.text
            piece.completion_tokens = self._num_tokens
            if found.matched is not None:
                piece.finish_reason, piece.matched_stop = "stop", found.matched
                return piece
        if piece.finish_reason is not None:
            piece.text += self._search.flush()
        return piece

    def _to_text(self, token_id: int, *, is_end_token: bool) -> Found:
        """Return the text of one token. The token that ended the text is part of it only if stops are included."""
        if is_end_token and not self._rules.include_stop:
            return Found("")
        text = self._rules.decoder.step(token_id)
        if self._num_tokens <= self._rules.min_tokens:
            return self._search.pass_by(text)
        return self._search.feed(text)

    def _note_times(self, output: TokenOutput) -> None:
        if not output.token_ids:
            return
        now_s = self._clock()
        if self.times.first_token_s is None:
            self.times.first_token_s = now_s
            self.times.queue_s, self.times.prefill_s = output.queue_seconds, output.prefill_seconds
        self.times.last_token_s = now_s
