"""How answers look: the two APIs' JSON objects, made of the same pieces. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
class ToolCall:
    """A part of one call of a function, or all of it. Only the part with which it begins has id and name."""

    index: int  # of the call in its answer
    arguments: str = ""  # all parts together are one JSON object
    name: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class ToldPrompt:
    """What is told of a prompt, each only where it is asked for."""

    text: str | None = None
    token_ids: Sequence[int] | None = None
    tokens: Sequence[Token] | None = None
    logprobs: Sequence[Json | None] | None = None  # by token id, as vLLM tells them


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one choice's answer, or all of it."""

    index: int
    text: str = ""  # what is said to the caller
    tokens: Sequence[Token] | None = None  # None = no log-probabilities are wanted
    finish: str | None = None
    offset: int = 0  # characters of tokens before
    token_ids: Sequence[int] | None = None  # None = not wanted
    matched_stop: str | None = None  # the stop string that ended it
    prompt: ToldPrompt | None = None  # in a stream of the choice's first piece
    reasoning: str = ""  # what is thought before that
    calls: Sequence[ToolCall] = ()  # behind both; of each function one part


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

    def beside(self, prompt: ToldPrompt) -> Json:
        """Return what of the prompt stands beside the choices."""


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
        """Return what is new as a delta."""
        delta = _reasoning(piece)
        if piece.calls:
            delta["tool_calls"] = [{"index": call.index} | _tool_call(call) for call in piece.calls]
        if piece.text or not (delta or piece.finish):
            delta["content"] = piece.text
        return self._choice(piece) | {"delta": delta}

    def whole(self, piece: Piece) -> Json:
        """Return the assistant's message."""
        said: Json = {"role": "assistant", "content": piece.text, "refusal": None} | _reasoning(piece)
        if piece.calls:
            said |= {"content": piece.text or None, "tool_calls": [_tool_call(call) for call in piece.calls]}
        return self._choice(piece) | {"message": said}

    def _choice(self, piece: Piece) -> Json:
        tokens = None if piece.tokens is None else {"content": [_chat_token(token) for token in piece.tokens]}
        if tokens:
            tokens["refusal"] = None  # type: ignore[assignment]  # OpenAI's other list, which is never there
        return {"index": piece.index, "logprobs": tokens, "finish_reason": piece.finish} | _ids(piece)

    def beside(self, prompt: ToldPrompt) -> Json:
        """Tell it here: all choices have one prompt."""
        return _of_prompt(prompt)


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
        told = _ids(piece) | (_of_prompt(piece.prompt) if piece.prompt else {})
        return {"index": piece.index, "text": piece.text, "logprobs": tokens, "finish_reason": piece.finish} | told

    def whole(self, piece: Piece) -> Json:
        """Return all of the text, behind what is echoed."""
        echo = piece.prompt
        if echo is None or echo.text is None:
            return self.part(piece)
        tokens = None if piece.tokens is None else [*(echo.tokens or ()), *piece.tokens]
        return self.part(replace(piece, text=echo.text + piece.text, tokens=tokens))

    def beside(self, prompt: ToldPrompt) -> Json:
        """Tell nothing: each choice tells its own."""
        del prompt
        return {}


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
        beside = self.shape.beside(pieces[0].prompt) if pieces[0].prompt else {}
        return self._object(self.shape.whole_object, choices) | {"usage": to_usage(usage)} | beside

    def part(self, choices: Sequence[Json], prompt: ToldPrompt | None = None) -> Json:
        """Return a stream's event."""
        return self._object(self.shape.part_object, choices) | (self.shape.beside(prompt) if prompt else {})

    def _object(self, name: str, choices: Sequence[Json]) -> Json:
        return {
            "id": self.shape.prefix + self.request_id,
            "object": name,
            "created": self.created_s,
            "model": self.model,
            "choices": list(choices),
        }


def prompt_details(usage: pb.Usage) -> Json:
    """Return what is told of a prompt's tokens; of images, videos and sounds where there are any."""
    names = ("image_tokens", "video_tokens", "audio_tokens")
    of_parts = {name: count for name in names if (count := getattr(usage, name))}
    return {"cached_tokens": usage.cached_tokens} | of_parts


def to_usage(usage: pb.Usage) -> Json:
    """Return OpenAI's usage object."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": prompt_details(usage),
        "completion_tokens_details": {
            "accepted_prediction_tokens": usage.accepted_prediction_tokens,
            "rejected_prediction_tokens": usage.rejected_prediction_tokens,
        },
    }


def _reasoning(piece: Piece) -> Json:
    """Return what was thought under both names that clients of vLLM read."""
    return {"reasoning_content": piece.reasoning, "reasoning": piece.reasoning} if piece.reasoning else {}


def _tool_call(call: ToolCall) -> Json:
    """Return a call; of one that has begun before only its arguments."""
    if not call.name:
        return {"function": {"arguments": call.arguments}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _ids(piece: Piece) -> Json:
    return {} if piece.token_ids is None else {"token_ids": list(piece.token_ids)}


def _of_prompt(prompt: ToldPrompt) -> Json:
    told = {"prompt_token_ids": prompt.token_ids, "prompt_logprobs": prompt.logprobs}
    return {name: list(value) for name, value in told.items() if value is not None}


def _chat_token(token: Token) -> Json:
    top = [_chat_entry(text, logprob) for text, logprob in token.top]
    return _chat_entry(token.text, token.logprob or 0.0) | {"top_logprobs": top}


def _chat_entry(text: str, logprob: float) -> Json:
    """Return a token; which bytes a part of a character has is not known."""
    raw = None if "\N{REPLACEMENT CHARACTER}" in text else list(text.encode())
    return {"token": text, "logprob": finite(logprob), "bytes": raw}


def _completion_tokens(tokens: Sequence[Token], offset: int) -> Json:
    offsets = [offset]
    for token in tokens:
        offsets.append(offsets[-1] + len(token.text))
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [None if token.logprob is None else finite(token.logprob) for token in tokens],
        "top_logprobs": [_completion_top(token) for token in tokens],
        "text_offset": offsets[:-1],
    }


def _completion_top(token: Token) -> Json | None:
    """Return the likeliest tokens by their text, and always the chosen one."""
    if token.logprob is None:
        return None
    found = {text: finite(logprob) for text, logprob in reversed(token.top)}  # of equal texts the likelier one stays
    return {token.text: finite(token.logprob)} | dict(reversed(found.items()))


def finite(logprob: float) -> float:
    """Return what JSON can hold."""
    return max(logprob, _LEAST_LOGPROB)
