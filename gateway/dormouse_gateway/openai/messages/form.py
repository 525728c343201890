"""How /v1/messages answers: one object of blocks, or Anthropic's events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.answers import event
from dormouse_gateway.openai.errors import ApiError, anthropic_body
from dormouse_gateway.openai.shapes import Json, Piece
from dormouse_gateway.openai.wish import Wish


@dataclass(slots=True)
class Message:
    """Tells one answer. Owns how far a stream has come: whether a block is open, and how it ended."""

    request_id: str
    model: str
    end_mark: bytes = b""
    _is_open: bool = False
    _last: Piece | None = None

    def whole(self, pieces: Sequence[Piece], usage: pb.Usage) -> Json:
        """Return the message."""
        (piece,) = pieces
        return self._message([_text(piece.text)], usage) | _ending(piece)

    def begin(self) -> list[bytes]:
        """Tell the message without anything in it."""
        return [_event("message_start", message=self._message([], pb.Usage()))]

    def part(self, piece: Piece) -> list[bytes]:
        """Tell the text."""
        self._last = piece
        if not piece.text:
            return []
        delta = {"type": "text_delta", "text": piece.text}
        return [*self._opening(), _event("content_block_delta", index=0, delta=delta)]

    def end(self, usage: pb.Usage) -> list[bytes]:
        """Close the block, tell how it ended and what it took."""
        assert self._last, "an answer has an end"
        return [
            *self._opening(),
            _event("content_block_stop", index=0),
            _event("message_delta", delta=_ending(self._last), usage=_usage(usage)),
            _event("message_stop"),
        ]

    def failed(self, error: ApiError) -> list[bytes]:
        """Tell the error."""
        return [event(anthropic_body(error, self.request_id), "error")]

    def _opening(self) -> list[bytes]:
        """Open the block, once."""
        if self._is_open:
            return []
        self._is_open = True
        return [_event("content_block_start", index=0, content_block=_text(""))]

    def _message(self, content: list[Json], usage: pb.Usage) -> Json:
        return {
            "id": f"msg_{self.request_id}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(usage),
        }


def message_form(_body: Mapping[str, Any], wish: Wish, request_id: str, _created_s: float) -> Message:
    """Return how a message is answered."""
    return Message(request_id, wish.model)


def _event(name: str, **said: Any) -> bytes:
    return event({"type": name, **said}, name)


def _text(said: str) -> Json:
    return {"type": "text", "text": said}


def _ending(piece: Piece) -> Json:
    if piece.finish == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if piece.matched_stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": piece.matched_stop}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def _usage(usage: pb.Usage) -> Json:
    """Return what it took; tokens that came from the cache are told apart from the others."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
