"""The form of chat and completions: choices, all of them alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.answers import event
from dormouse_gateway.openai.errors import ApiError
from dormouse_gateway.openai.shapes import CHAT, COMPLETION, Head, Json, Piece, Shape, to_usage
from dormouse_gateway.openai.wish import Wish


@dataclass(slots=True)
class Choices:
    """Tells one answer. Owns which choices of a stream were opened."""

    head: Head
    with_usage: bool = False
    end_mark: bytes = b"data: [DONE]\n\n"
    _opened: set[int] = field(default_factory=set)

    def whole(self, pieces: Sequence[Piece], usage: pb.Usage) -> Json:
        """Return the object."""
        return self.head.whole(pieces, usage)

    def begin(self) -> list[bytes]:
        """Wait for what the first choice says."""
        return []

    def part(self, piece: Piece) -> list[bytes]:
        """Open the choice, if that is to be said, and tell its piece."""
        shape = self.head.shape
        opening = shape.opening(piece.index) if piece.index not in self._opened else None
        self._opened.add(piece.index)
        no_usage = {"usage": None} if self.with_usage else {}
        told = [choice for choice in (opening, shape.part(piece)) if choice]
        prompts = [piece.prompt, *([None] * len(told))]  # told once
        return [
            event(self.head.part([choice], prompt) | no_usage) for choice, prompt in zip(told, prompts, strict=False)
        ]

    def end(self, usage: pb.Usage) -> list[bytes]:
        """Tell the usage, where it is asked for."""
        return [event(self.head.part([]) | {"usage": to_usage(usage)})] if self.with_usage else []

    def failed(self, error: ApiError) -> list[bytes]:
        """Tell the error."""
        return [event(error.body)]


def chat_form(_body: Mapping[str, Any], wish: Wish, request_id: str, created_s: float) -> Choices:
    """Return how a chat is answered."""
    return _form(CHAT, wish, request_id, created_s)


def completion_form(_body: Mapping[str, Any], wish: Wish, request_id: str, created_s: float) -> Choices:
    """Return how a completion is answered."""
    return _form(COMPLETION, wish, request_id, created_s)


def _form(shape: Shape, wish: Wish, request_id: str, created_s: float) -> Choices:
    return Choices(Head(shape, request_id, wish.model, int(created_s)), wish.with_usage)
