"""How /v1/messages answers: one object of blocks, or Anthropic's events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.answers import event
from dormouse_gateway.openai.blocks import Block, Blocks, Kind, Step
from dormouse_gateway.openai.errors import ApiError, anthropic_body
from dormouse_gateway.openai.reading import parse_arguments
from dormouse_gateway.openai.shapes import Json, Piece
from dormouse_gateway.openai.wish import Wish

_DELTAS: Mapping[Kind, tuple[str, str]] = {  # type, and the name of what is new
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


@dataclass(slots=True)
class Message:
    """Tells one answer. Owns how far a stream has come: its blocks, and how it ended."""

    request_id: str
    model: str
    end_mark: bytes = b""
    _blocks: Blocks = field(default_factory=Blocks)
    _last: Piece | None = None

    def whole(self, pieces: Sequence[Piece], usage: pb.Usage) -> Json:
        """Return the message."""
        (piece,) = pieces
        for _ in (*self._blocks.take(piece), *self._blocks.end()):
            pass
        return self._message([_whole(block) for block in self._blocks.blocks], usage) | _ending(piece)

    def begin(self) -> list[bytes]:
        """Tell the message without anything in it."""
        return [_event("message_start", message=self._message([], pb.Usage()))]

    def part(self, piece: Piece) -> list[bytes]:
        """Tell what each block says anew."""
        self._last = piece
        return [_told(step) for step in self._blocks.take(piece)]

    def end(self, usage: pb.Usage) -> list[bytes]:
        """End the last block, tell how it ended and what it took."""
        assert self._last, "an answer has an end"
        return [
            *[_told(step) for step in self._blocks.end()],
            _event("message_delta", delta=_ending(self._last), usage=_usage(usage)),
            _event("message_stop"),
        ]

    def failed(self, error: ApiError) -> list[bytes]:
        """Tell the error."""
        return [event(anthropic_body(error, self.request_id), "error")]

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


def _event(name: str, /, **said: Any) -> bytes:
    return event({"type": name, **said}, name)


def _told(step: Step) -> bytes:
    block = step.block
    match step.what:
        case "begun":
            return _event("content_block_start", index=block.index, content_block=_bare(block))
        case "grown":
            kind, name = _DELTAS[block.kind]
            return _event("content_block_delta", index=block.index, delta={"type": kind, name: step.new})
        case "ended":
            return _event("content_block_stop", index=block.index)


def _bare(block: Block) -> Json:
    """Return the block before it says anything."""
    match block.kind:
        case "text":
            return {"type": "text", "text": ""}
        case "reasoning":
            return {"type": "thinking", "thinking": "", "signature": ""}  # nobody signs
        case "call":
            return {"type": "tool_use", "id": block.id, "name": block.name, "input": {}}


def _whole(block: Block) -> Json:
    if block.kind == "call":
        return _bare(block) | {"input": parse_arguments(block.said or "{}")}
    return _bare(block) | {"text" if block.kind == "text" else "thinking": block.said}


def _ending(piece: Piece) -> Json:
    if piece.finish == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if piece.finish == "tool_calls":
        return {"stop_reason": "tool_use", "stop_sequence": None}
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
