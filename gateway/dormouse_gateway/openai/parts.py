"""From what a worker tells apart in an answer to text, thoughts and calls. Names the calls."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.shapes import ToolCall

_OF_CALLS = {"call", "arguments"}
_LETTERS = string.ascii_letters + string.digits
_ID_CHARS = 9  # Mistral's templates take ids of this length only, others any


def new_id() -> str:
    """Return an id for a call."""
    return "".join(secrets.choice(_LETTERS) for _ in range(_ID_CHARS))


@dataclass(frozen=True, slots=True)
class Told:
    """What a message says."""

    text: str = ""
    reasoning: str = ""
    calls: Sequence[ToolCall] = ()


@dataclass(slots=True)
class Parts:
    """Reads the messages of all choices. Owns which of them have called a function."""

    make_id: Callable[[], str] = new_id
    _callers: set[int] = field(default_factory=set)

    def read(self, message: pb.GenerateResponse) -> Told:
        """Return what a message says: its text, where the worker told nothing apart."""
        if not message.parsed:
            return Told(message.text)
        calls = merged(map(self._call, (part for part in message.parts if part.WhichOneof("part") in _OF_CALLS)))
        if calls:
            self._callers.add(message.choice_index)
        return Told(
            "".join(part.content for part in message.parts), "".join(part.reasoning for part in message.parts), calls
        )

    def finish(self, choice_index: int, reason: str | None, *, at_stop_string: bool = False) -> str | None:
        """Return why a choice ended, as the APIs say it: one that called something ended for that.

        A stop string may have cut a call, as a limit may: its arguments are closed, and need not fit.
        """
        called = reason == "stop" and not at_stop_string and choice_index in self._callers
        return "tool_calls" if called else reason

    def _call(self, part: pb.AnswerPart) -> ToolCall:
        if part.HasField("call"):
            return ToolCall(part.call.index, name=part.call.name, id=self.make_id())
        return ToolCall(part.arguments.index, part.arguments.json)


def merged(parts: Iterable[ToolCall]) -> list[ToolCall]:
    """Return the parts of each call as one, in the order in which calls begin."""
    calls: dict[int, ToolCall] = {}
    for part in parts:
        known = calls.get(part.index)
        calls[part.index] = part if known is None else replace(known, arguments=known.arguments + part.arguments)
    return list(calls.values())
