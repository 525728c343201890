"""From a call's messages to pieces of answers, and those to one object or to events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc

from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.errors import ApiError, from_call_error
from dormouse_gateway.openai.mapping import Wish
from dormouse_gateway.openai.shapes import FINISH_REASONS, Head, Piece, Token, to_usage

WAITING = b": waiting\n\n"
OURS = "dormouse-"  # metadata that clients may read
_DONE = b"data: [DONE]\n\n"
_ENDED_EARLY = "the worker ended the answer before it was complete"


class Source(Protocol):
    """Where messages come from."""

    said: dict[str, str]  # metadata that the core told besides, complete when the messages are

    async def read(self) -> bytes | None:
        """Return the next message, None after the last. Raises CallError."""


class Texts(Protocol):
    """Knows what tokens look like."""

    async def of(self, token_ids: Iterable[int]) -> dict[int, str]:
        """Return the text of each of these tokens. Raises CallError."""


@dataclass(slots=True)
class Answer:
    """Turns messages into pieces. Owns what was said so far: usage, and how far each choice's tokens have come."""

    wish: Wish
    texts: Texts
    usage: pb.Usage = field(default_factory=pb.Usage)
    _offsets: dict[int, int] = field(default_factory=dict)

    async def piece(self, raw: bytes) -> Piece | None:
        """Return what a message adds, None for nothing. Raises CallError if the worker gave up."""
        message = pb.GenerateResponse.FromString(raw)
        if message.HasField("usage"):
            self.usage = message.usage
        if message.finish_reason == pb.FINISH_REASON_ABORT:
            raise CallError(grpc.StatusCode.UNAVAILABLE, _ENDED_EARLY, 1.0)
        tokens = await self.tokens(message.logprobs) if self.wish.with_logprobs else None
        finish = FINISH_REASONS.get(message.finish_reason)
        if not (message.text or tokens or finish):
            return None  # a part of a character, or a sign of life
        index = message.choice_index
        offset = self._offsets.get(index, 0)
        self._offsets[index] = offset + sum(len(token.text) for token in tokens or ())
        return Piece(index, message.text, tokens, finish, offset)

    async def tokens(self, positions: Sequence[pb.PositionLogprobs]) -> list[Token]:
        """Return the tokens of these positions."""
        ids = {entry.token_id for position in positions for entry in (position.sampled, *position.top)}
        texts = await self.texts.of(ids) if ids else {}
        return [_token(position, texts) for position in positions]


async def in_one_piece(source: Source, answer: Answer, head: Head, prompt: Prompt | None = None) -> dict[str, Any]:
    """Read all, and return one object. Raises CallError."""
    pieces: dict[int, list[Piece]] = {}
    while (raw := await source.read()) is not None:
        if prompt:
            prompt.take(raw)
        if piece := await answer.piece(raw):
            pieces.setdefault(piece.index, []).append(piece)
    whole = [_joined(pieces[index]) for index in sorted(pieces)]
    if any(piece.finish is None for piece in whole) or not whole:
        raise CallError(grpc.StatusCode.INTERNAL, _ENDED_EARLY)
    before = await prompt.piece(answer) if prompt else None
    return head.whole([_joined([before, piece]) if before else piece for piece in whole], answer.usage)


async def as_events(
    source: Source, answer: Answer, head: Head, first: bytes | None, *, waiting_s: float
) -> AsyncIterator[bytes]:
    """Yield the stream's events; an error becomes an event, too. `first` is the first message, if it is there yet."""
    try:
        async for event in _events(source, answer, head, first, waiting_s):
            yield event
    except CallError as error:
        yield _event(from_call_error(error).body)
    except ApiError as error:
        yield _event(error.body)
    else:
        yield _note(source.said) + _DONE


async def _events(
    source: Source, answer: Answer, head: Head, first: bytes | None, waiting_s: float
) -> AsyncIterator[bytes]:
    with_usage = {"usage": None} if answer.wish.with_usage else {}
    opened: set[int] = set()
    async for raw in _messages(source, first, waiting_s):
        if raw is None:
            yield WAITING
            continue
        piece = await answer.piece(raw)
        if piece is None:
            continue
        opening = head.shape.opening(piece.index) if piece.index not in opened else None
        opened.add(piece.index)
        for choice in (opening, head.shape.part(piece)):
            if choice:
                yield _event(head.part([choice]) | with_usage)
    if answer.wish.with_usage:
        yield _event(head.part([]) | {"usage": to_usage(answer.usage)})


async def _messages(source: Source, first: bytes | None, waiting_s: float) -> AsyncIterator[bytes | None]:
    """Yield the messages, and None whenever there was none for a while."""
    if first is None:
        yield None
    else:
        yield first
    while True:
        try:
            async with asyncio.timeout(waiting_s):
                raw = await source.read()
        except TimeoutError:
            yield None
            continue
        if raw is None:
            return
        yield raw


@dataclass(slots=True)
class Prompt:
    """What `echo` puts before an answer: the prompt's text and, where asked for, its tokens."""

    text: str
    first_token_id: int | None = None  # None = no log-probabilities are wanted
    _positions: list[pb.PositionLogprobs] = field(default_factory=list)

    def take(self, raw: bytes) -> None:
        """Collect what a message says of the prompt."""
        if self.first_token_id is not None:
            self._positions.extend(pb.GenerateResponse.FromString(raw).prompt_logprobs)

    async def piece(self, answer: Answer) -> Piece:
        """Return the prompt as a piece. Raises CallError."""
        if self.first_token_id is None:
            return Piece(0, self.text)
        first = (await answer.texts.of([self.first_token_id]))[self.first_token_id]
        return Piece(0, self.text, [Token(first, None), *await answer.tokens(self._positions)])


def _joined(pieces: Sequence[Piece]) -> Piece:
    last = pieces[-1]
    has_tokens = any(piece.tokens is not None for piece in pieces)
    tokens = [token for piece in pieces for token in piece.tokens or ()] if has_tokens else None
    return Piece(last.index, "".join(piece.text for piece in pieces), tokens, last.finish)


def _token(position: pb.PositionLogprobs, texts: dict[int, str]) -> Token:
    top = [(texts[entry.token_id], entry.logprob) for entry in position.top]
    return Token(texts[position.sampled.token_id], position.sampled.logprob, top)


def _note(said: dict[str, str]) -> bytes:
    """Return as a comment what would be a header, were it not known at the end only: how the worker was found."""
    lines = [f": {key}: {value}\n" for key, value in said.items() if key.startswith(OURS)]
    return "".join([*lines, "\n"]).encode() if lines else b""


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
