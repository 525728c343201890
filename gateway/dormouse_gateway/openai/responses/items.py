"""The items of a response, and the events that tell one: a message, what was thought, a call. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dormouse_gateway.openai.blocks import Block
from dormouse_gateway.openai.shapes import Json, Token, finite

Event = tuple[str, Json]  # name, what it says besides


class Item(Protocol):
    """One block as an item."""

    def done(self) -> Json:
        """Return the item as it is at its end."""

    def begun(self) -> list[Event]:
        """Return the events of its beginning."""

    def grown(self, new: str, tokens: Sequence[Token]) -> list[Event]:
        """Return the events of what is new in it."""

    def ended(self) -> list[Event]:
        """Return the events of its end."""


@dataclass(frozen=True, slots=True)
class _Texts:
    """What messages and thoughts have in common: one part of text."""

    block: Block
    request_id: str
    tokens: Sequence[Token]  # for log-probabilities; none where they are not wanted
    is_cut: bool

    @property
    def id(self) -> str:
        """Return the item's id."""
        return f"msg_{self.request_id}"

    @property
    def prefix(self) -> str:
        """Return how its events' names begin."""
        return "response.output_text"

    def done(self) -> Json:
        """Return the message."""
        return self._item("incomplete" if self.is_cut else "completed", [self._part(self.block.said)])

    def begun(self) -> list[Event]:
        """Tell the item, and its part."""
        return [
            ("response.output_item.added", {"item": self._item("in_progress", [])}),
            ("response.content_part.added", self._at() | {"part": self._part("")}),
        ]

    def grown(self, new: str, tokens: Sequence[Token]) -> list[Event]:
        """Tell the text."""
        return [(f"{self.prefix}.delta", self._at() | {"delta": new} | self._logprobs(tokens))]

    def ended(self) -> list[Event]:
        """Tell all of the text, the part, the item."""
        return [
            (f"{self.prefix}.done", self._at() | {"text": self.block.said} | self._logprobs(self.tokens)),
            ("response.content_part.done", self._at() | {"part": self._part(self.block.said)}),
            ("response.output_item.done", {"item": self.done()}),
        ]

    def _at(self) -> Json:
        return {"item_id": self.id, "content_index": 0}

    def _logprobs(self, tokens: Sequence[Token]) -> Json:
        return {"logprobs": [_logprob(token) for token in tokens]}

    def _part(self, said: str) -> Json:
        told = self._logprobs(self.tokens if said else ())
        return {"type": "output_text", "text": said, "annotations": []} | told

    def _item(self, status: str, content: list[Json]) -> Json:
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}


@dataclass(frozen=True, slots=True)
class _Thoughts(_Texts):
    """What was thought."""

    @property
    def id(self) -> str:
        """Return the item's id."""
        return f"rs_{self.request_id}"

    @property
    def prefix(self) -> str:
        """Return how its events' names begin."""
        return "response.reasoning_text"

    def _logprobs(self, tokens: Sequence[Token]) -> Json:
        del tokens  # only those of the message are told
        return {}

    def _part(self, said: str) -> Json:
        return {"type": "reasoning_text", "text": said}

    def _item(self, status: str, content: list[Json]) -> Json:
        return {"id": self.id, "type": "reasoning", "status": status, "summary": [], "content": content}


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a function."""

    block: Block
    request_id: str
    tokens: Sequence[Token]  # for log-probabilities; none where they are not wanted
    is_cut: bool

    def done(self) -> Json:
        """Return the call."""
        return self._item("incomplete" if self.is_cut else "completed", self.block.said)

    def begun(self) -> list[Event]:
        """Tell the call without its arguments."""
        return [("response.output_item.added", {"item": self._item("in_progress", "")})]

    def grown(self, new: str, tokens: Sequence[Token]) -> list[Event]:
        """Tell more of the arguments."""
        del tokens  # only those of the message are told
        return [("response.function_call_arguments.delta", {"item_id": self._id, "delta": new})]

    def ended(self) -> list[Event]:
        """Tell all of the arguments, and the item."""
        said = {"item_id": self._id, "name": self.block.name, "arguments": self.block.said}
        return [
            ("response.function_call_arguments.done", said),
            ("response.output_item.done", {"item": self.done()}),
        ]

    @property
    def _id(self) -> str:
        return f"fc_{self.request_id}"

    def _item(self, status: str, arguments: str) -> Json:
        return {
            "id": self._id,
            "type": "function_call",
            "status": status,
            "call_id": self.block.id,
            "name": self.block.name,
            "arguments": arguments,
        }


ITEMS: Mapping[str, Callable[[Block, str, Sequence[Token], bool], Item]] = {
    "text": _Texts,
    "reasoning": _Thoughts,
    "call": _Call,
}


def _logprob(token: Token) -> Json:
    return _entry(token.text, token.logprob or 0.0) | {
        "top_logprobs": [_entry(text, logprob) for text, logprob in token.top]
    }


def _entry(text: str, logprob: float) -> Json:
    """Return a token; which bytes a part of a character has is not known."""
    raw = [] if "\N{REPLACEMENT CHARACTER}" in text else list(text.encode())
    return {"token": text, "logprob": finite(logprob), "bytes": raw}
