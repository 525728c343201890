"""How answers look: the two APIs' JSON objects, made of the same pieces. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dormouse_api.v1 import inference_pb2 as pb

Json = dict[str, Any]

FINISH_REASONS: Mapping[int, str] = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}
_LEAST_LOGPROB = -9999.0  # JSON knows no infinity


@dataclass(frozen=True, slots=True)
class Token:
    """One token with its log-probability; None for a prompt's first one, which nothing stands before."""

    text: str
    logprob: float | None
    top: Sequence[tuple[str, float]] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one choice's answer, or all of it."""

    index: int
    text: str = ""
    tokens: Sequence[Token] | None = None  # None = no log-probabilities are wanted
    finish: str | None = None
    offset: int = 0  # characters of tokens before


class Shape(Protocol):
    """What differs between the two APIs."""

    prefix: str  # of ids
    whole_object: str
    part_object: str

    def opening(self, index: int) -> Json | None:
        """Return the choice of a stream's first event; None where there is none."""

    def part(self, piece: Piece) -> Json:
        """Return the choice of a later event."""

    def whole(self, piece: Piece) -> Json:
        """Return the choice of an answer in one piece."""


class ChatShape:
    """/v1/chat/completions."""

    prefix = "chatcmpl-"
    whole_object = "chat.completion"
    part_object = "chat.completion.chunk"

    def opening(self, index: int) -> Json | None:
        """Tell the role."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def part(self, piece: Piece) -> Json:
        """Return the new text as a delta."""
        delta = {"content": piece.text} if piece.text or piece.finish is None else {}
        return self._choice(piece) | {"delta": delta}

    def whole(self, piece: Piece) -> Json:
        """Return the assistant's message."""
        return self._choice(piece) | {"message": {"role": "assistant", "content": piece.text, "refusal": None}}

    def _choice(self, piece: Piece) -> Json:
        tokens = None if piece.tokens is None else {"content": [_chat_token(token) for token in piece.tokens]}
        if tokens:
            tokens["refusal"] = None  # type: ignore[assignment]  # OpenAI's other list, which is never there
        return {"index": piece.index, "logprobs": tokens, "finish_reason": piece.finish}


class CompletionShape:
    """/v1/completions."""

    prefix = "cmpl-"
    whole_object = part_object = "text_completion"

    def opening(self, index: int) -> Json | None:
        """Begin with the first text."""
        del index  # there is nothing to be said before
        return None

    def part(self, piece: Piece) -> Json:
        """Return the new text."""
        tokens = None if piece.tokens is None else _completion_tokens(piece.tokens, piece.offset)
        return {"index": piece.index, "text": piece.text, "logprobs": tokens, "finish_reason": piece.finish}

    def whole(self, piece: Piece) -> Json:
        """Return all of the text."""
        return self.part(piece)


CHAT: Shape = ChatShape()
COMPLETION: Shape = CompletionShape()


@dataclass(frozen=True, slots=True)
class Head:
    """What all objects of one answer begin with."""

    shape: Shape
    request_id: str
    model: str  # as the client called it
    created_s: int  # Unix time

    def whole(self, pieces: Sequence[Piece], usage: pb.Usage) -> Json:
        """Return the answer in one piece."""
        choices = [self.shape.whole(piece) for piece in pieces]
        return self._object(self.shape.whole_object, choices) | {"usage": to_usage(usage)}

    def part(self, choices: Sequence[Json]) -> Json:
        """Return a stream's event."""
        return self._object(self.shape.part_object, choices)

    def _object(self, name: str, choices: Sequence[Json]) -> Json:
        return {
            "id": self.shape.prefix + self.request_id,
            "object": name,
            "created": self.created_s,
            "model": self.model,
            "choices": list(choices),
        }


def to_usage(usage: pb.Usage) -> Json:
    """Return OpenAI's usage object."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _chat_token(token: Token) -> Json:
    top = [_chat_entry(text, logprob) for text, logprob in token.top]
    return _chat_entry(token.text, token.logprob or 0.0) | {"top_logprobs": top}


def _chat_entry(text: str, logprob: float) -> Json:
    """Return a token; which bytes a part of a character has is not known."""
    raw = None if "\N{REPLACEMENT CHARACTER}" in text else list(text.encode())
    return {"token": text, "logprob": _finite(logprob), "bytes": raw}


def _completion_tokens(tokens: Sequence[Token], offset: int) -> Json:
    offsets = [offset]
    for token in tokens:
        offsets.append(offsets[-1] + len(token.text))
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [None if token.logprob is None else _finite(token.logprob) for token in tokens],
        "top_logprobs": [_completion_top(token) for token in tokens],
        "text_offset": offsets[:-1],
    }


def _completion_top(token: Token) -> Json | None:
    """Return the likeliest tokens by their text, and always the chosen one."""
    if token.logprob is None:
        return None
    found = {text: _finite(logprob) for text, logprob in reversed(token.top)}  # of equal texts the likelier one stays
    return {token.text: _finite(token.logprob)} | dict(reversed(found.items()))


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)
