"""From a call's messages to pieces of answers, and those to one object or to events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import grpc

from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.errors import ApiError, from_call_error
from dormouse_gateway.openai.parts import Parts, merged
from dormouse_gateway.openai.prompts import Prompts, Texts, tokens
from dormouse_gateway.openai.shapes import FINISH_REASONS, Json, Piece
from dormouse_gateway.openai.wish import Wish

WAITING = b": waiting\n\n"
OURS = "dormouse-"  # metadata that clients may read
_ENDED_EARLY = "the worker ended the answer before it was complete"


class Source(Protocol):
    """Where messages come from."""

    @property
    def said(self) -> dict[str, str]:
        """Return the metadata that the core told besides, complete when the messages are."""

    async def read(self) -> bytes | None:
        """Return the next message, None after the last. Raises CallError."""


class Form(Protocol):
    """How one answer looks at its door: as one object, or as the events of a stream. Knows how far the stream is."""

    end_mark: bytes  # what a stream that came to its end ends with

    def whole(self, pieces: Sequence[Piece], usage: pb.Usage) -> Json:
        """Return all choices, in order, as one object."""

    def begin(self) -> list[bytes]:
        """Return the events before the first piece."""

    def part(self, piece: Piece) -> list[bytes]:
        """Return the events of a piece."""

    def end(self, usage: pb.Usage) -> list[bytes]:
        """Return the events after the last piece."""

    def failed(self, error: ApiError) -> list[bytes]:
        """Return the events with which a stream breaks off."""


@dataclass(slots=True)
class Answer:
    """Turns messages into pieces. Owns what was said so far: usage, and how far each choice's tokens have come.

    All text of all doors passes `piece`, which tells calls and thoughts apart from it.
    """

    wish: Wish
    texts: Texts
    usage: pb.Usage = field(default_factory=pb.Usage)
    parts: Parts = field(default_factory=Parts)
    _offsets: dict[int, int] = field(default_factory=dict)
    _prompts: Prompts = field(init=False)

    def __post_init__(self) -> None:
        """Begin."""
        self._prompts = Prompts(self.wish, self.texts)

    async def piece(self, raw: bytes) -> Piece | None:
        """Return what a message adds, None for nothing. Raises CallError if the worker gave up."""
        message = pb.GenerateResponse.FromString(raw)
        if message.HasField("usage"):
            self._count(message.usage)
        if message.finish_reason == pb.FINISH_REASON_ABORT:
            raise CallError(grpc.StatusCode.UNAVAILABLE, _ENDED_EARLY, 1.0)
        if self.wish.needs_prompts:
            self._prompts.take(message)
        said = self.parts.read(message)
        stop = message.matched_stop if message.HasField("matched_stop") else None
        reason = FINISH_REASONS.get(message.finish_reason)
        finish = self.parts.finish(message.choice_index, reason, at_stop_string=stop is not None)
        if self.wish.without_answer:
            return self._nothing(message.choice_index, finish)
        told = await tokens(self.texts, message.logprobs) if self.wish.with_logprobs else None
        ids = list(message.token_ids) if self.wish.with_token_ids else None
        if not (said.text or said.reasoning or said.calls or told or ids or finish):
            return None  # a part of a character or of a marker, or a sign of life
        index = message.choice_index
        offset = self._offsets.get(index, 0)
        self._offsets[index] = offset + sum(len(token.text) for token in told or ())
        return Piece(index, said.text, told, finish, offset, ids, stop, reasoning=said.reasoning, calls=said.calls)

    async def with_prompt(self, piece: Piece) -> Piece:
        """Return the choice's piece with what is told of its prompt. Raises CallError."""
        if not self.wish.needs_prompts:
            return piece
        return replace(piece, prompt=await self._prompts.of_choice(piece.index))

    def _nothing(self, index: int, finish: str | None) -> Piece | None:
        """Return the end of a choice of which no token was wanted."""
        if not finish:
            return None
        return Piece(
            index,
            tokens=[] if self.wish.with_logprobs else None,
            finish="length",
            token_ids=[] if self.wish.with_token_ids else None,
        )

    def _count(self, usage: pb.Usage) -> None:
        """Add the usage of one prompt's choices."""
        self.usage.prompt_tokens += usage.prompt_tokens
        self.usage.cached_tokens += usage.cached_tokens
        self.usage.image_tokens += usage.image_tokens
        self.usage.video_tokens += usage.video_tokens
        self.usage.audio_tokens += usage.audio_tokens
        self.usage.accepted_prediction_tokens += usage.accepted_prediction_tokens
        self.usage.rejected_prediction_tokens += usage.rejected_prediction_tokens
        if not self.wish.without_answer:
            self.usage.completion_tokens += usage.completion_tokens


async def in_one_piece(source: Source, answer: Answer, form: Form) -> Json:
    """Read all, and return one object. Raises CallError."""
    pieces: dict[int, list[Piece]] = {}
    while (raw := await source.read()) is not None:
        if piece := await answer.piece(raw):
            pieces.setdefault(piece.index, []).append(piece)
    whole = [_joined(pieces[index]) for index in sorted(pieces)]
    if any(piece.finish is None for piece in whole) or len(whole) < len(answer.wish.prompts):
        raise CallError(grpc.StatusCode.INTERNAL, _ENDED_EARLY)
    return form.whole([await answer.with_prompt(piece) for piece in whole], answer.usage)


async def as_events(
    source: Source, answer: Answer, form: Form, first: bytes | None, *, waiting_s: float
) -> AsyncIterator[bytes]:
    """Yield the stream's events; an error becomes an event, too. `first` is the first message, if it is there yet."""
    try:
        async for event in _events(source, answer, form, first, waiting_s):
            yield event
    except CallError as error:
        yield b"".join(form.failed(from_call_error(error)))
    except ApiError as error:
        yield b"".join(form.failed(error))
    else:
        if tail := _note(source.said) + form.end_mark:
            yield tail


async def _events(
    source: Source, answer: Answer, form: Form, first: bytes | None, waiting_s: float
) -> AsyncIterator[bytes]:
    for event in form.begin():
        yield event
    opened: set[int] = set()
    async for raw in _messages(source, first, waiting_s):
        if raw is None:
            yield WAITING
            continue
        piece = await answer.piece(raw)
        if piece is None:
            continue
        if piece.index not in opened:
            opened.add(piece.index)
            piece = await answer.with_prompt(piece)
        for event in form.part(piece):
            yield event
    for event in form.end(answer.usage):
        yield event


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


def _joined(pieces: Sequence[Piece]) -> Piece:
    """Return a choice's pieces as one."""
    last = pieces[-1]
    told = [token for piece in pieces for token in piece.tokens or ()]
    ids = [token_id for piece in pieces for token_id in piece.token_ids or ()]
    return replace(
        last,
        text="".join(piece.text for piece in pieces),
        tokens=told if any(piece.tokens is not None for piece in pieces) else None,
        token_ids=ids if any(piece.token_ids is not None for piece in pieces) else None,
        offset=0,
        reasoning="".join(piece.reasoning for piece in pieces),
        calls=merged(call for piece in pieces for call in piece.calls),
    )


def _note(said: dict[str, str]) -> bytes:
    """Return as a comment what would be a header, were it not known at the end only: how the worker was found."""
    lines = [f": {key}: {value}\n" for key, value in said.items() if key.startswith(OURS)]
    return "".join([*lines, "\n"]).encode() if lines else b""


def event(value: dict[str, Any], name: str = "") -> bytes:
    """Return an event of a stream, of this name if it has one."""
    named = f"event: {name}\n".encode() if name else b""
    return named + b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
