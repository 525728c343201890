"""How /v1/responses answers: one object of items, or OpenAI's events for each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.answers import event
from dormouse_gateway.openai.blocks import Block, Blocks, Step
from dormouse_gateway.openai.errors import ApiError
from dormouse_gateway.openai.responses.items import ITEMS, Item
from dormouse_gateway.openai.shapes import Json, Piece, Token, prompt_details
from dormouse_gateway.openai.wish import Wish

_ECHOED: Sequence[tuple[str, Any]] = (  # what an answer says of its request, and what it says where that did not
    ("instructions", None),
    ("max_output_tokens", None),
    ("metadata", {}),
    ("parallel_tool_calls", True),
    ("prompt_cache_key", None),
    ("reasoning", {"effort": None, "summary": None}),
    ("safety_identifier", None),
    ("temperature", None),
    ("text", {"format": {"type": "text"}}),
    ("tool_choice", "auto"),
    ("tools", []),
    ("top_logprobs", 0),
    ("top_p", None),
    ("user", None),
)
_THE_SAME = {
    "background": False,
    "max_tool_calls": None,
    "previous_response_id": None,
    "service_tier": "default",
    "store": False,
    "truncation": "disabled",
}


@dataclass(slots=True)
class Response:
    """Tells one answer. Owns how far a stream has come: its blocks with their tokens, the numbers of its events."""

    request_id: str
    head: Json  # what all of the answer's objects have
    end_mark: bytes = b""
    _blocks: Blocks = field(default_factory=Blocks)
    _tokens: dict[int, list[Token]] = field(default_factory=dict)  # by block; of those only that are told
    _is_cut: bool = False  # the last block, by its length
    _num_events: int = 0

    def whole(self, pieces: Sequence[Piece], usage: pb.Usage) -> Json:
        """Return the response."""
        (piece,) = pieces
        self._take(piece)
        for _ in self._blocks.end():
            pass
        return self._ended(usage)

    def begin(self) -> list[bytes]:
        """Tell that it is made."""
        made = self._object("in_progress", [], None)
        return [self._event("response.created", response=made), self._event("response.in_progress", response=made)]

    def part(self, piece: Piece) -> list[bytes]:
        """Tell what each item says anew."""
        return [told for step in self._take(piece) for told in self._told(step, piece.tokens or ())]

    def end(self, usage: pb.Usage) -> list[bytes]:
        """End the last item and tell the whole."""
        told = [each for step in self._blocks.end() for each in self._told(step)]
        response = self._ended(usage)
        return [*told, self._event(f"response.{response['status']}", response=response)]

    def failed(self, error: ApiError) -> list[bytes]:
        """Tell the error, and that the response ends with it."""
        why = {"code": error.code or error.kind, "message": error.message}
        made = self._object("failed", self._output(), None) | {"error": why}
        return [self._event("error", **why, param=error.param), self._event("response.failed", response=made)]

    def _take(self, piece: Piece) -> list[Step]:
        steps = list(self._blocks.take(piece))
        if piece.text and piece.tokens:
            last = max(block.index for block in self._blocks.blocks if block.kind == "text")
            self._tokens.setdefault(last, []).extend(piece.tokens)
        self._is_cut = piece.finish == "length"
        return steps

    def _told(self, step: Step, new_tokens: Sequence[Token] = ()) -> list[bytes]:
        item = self._item(step.block)
        match step.what:
            case "begun":
                events = item.begun()
            case "grown":
                events = item.grown(step.new, new_tokens)
            case "ended":
                events = item.ended()
        return [self._event(name, output_index=step.block.index, **said) for name, said in events]

    def _item(self, block: Block) -> Item:
        is_last = block.index == len(self._blocks.blocks) - 1
        item_id = f"{self.request_id}_{block.index}"
        return ITEMS[block.kind](block, item_id, self._tokens.get(block.index, []), self._is_cut and is_last)

    def _output(self) -> list[Json]:
        return [self._item(block).done() for block in self._blocks.blocks]

    def _ended(self, usage: pb.Usage) -> Json:
        made = self._object("incomplete" if self._is_cut else "completed", self._output(), usage)
        return made | ({"incomplete_details": {"reason": "max_output_tokens"}} if self._is_cut else {})

    def _object(self, status: str, output: list[Json], usage: pb.Usage | None) -> Json:
        told = None if usage is None else _usage(usage)
        return self.head | {"status": status, "output": output, "usage": told}

    def _event(self, name: str, /, **said: Any) -> bytes:
        self._num_events += 1
        return event({"type": name, "sequence_number": self._num_events - 1, **said}, name)


def response_form(body: Mapping[str, Any], wish: Wish, request_id: str, created_s: float) -> Response:
    """Return how a response is told."""
    head = {
        "id": f"resp_{request_id}",
        "object": "response",
        "created_at": int(created_s),
        "model": wish.model,
        "error": None,
        "incomplete_details": None,
        **{name: body.get(name, default) for name, default in _ECHOED},
        **_THE_SAME,
    }
    head["text"] = {"format": {"type": "text"}} | head["text"]
    return Response(request_id, head)


def _usage(usage: pb.Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": prompt_details(usage) | {"cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
