"""Streams of Generate as the kit reads them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_conformance.findings import Missed


@dataclass(frozen=True, slots=True)
class Answer:
    """All messages of a stream that has ended well."""

    messages: tuple[pb.GenerateResponse, ...]

    def tokens(self, choice: int = 0) -> list[int]:
        """Return the tokens of a choice."""
        return [token for message in self.of(choice) for token in message.token_ids]

    def text(self) -> str:
        """Return the text of the first choice."""
        return "".join(message.text for message in self.of(0))

    def of(self, choice: int) -> list[pb.GenerateResponse]:
        """Return the messages of a choice."""
        return [message for message in self.messages if message.choice_index == choice]

    def reasons(self, choice: int = 0) -> list[str]:
        """Return the finish reasons that were told of a choice, in order."""
        told = (message.finish_reason for message in self.of(choice) if message.finish_reason)
        return [pb.FinishReason.Name(reason).removeprefix("FINISH_REASON_") for reason in told]

    @property
    def usage(self) -> pb.Usage:
        """Return what the first message says that says any."""
        return next((message.usage for message in self.messages if message.HasField("usage")), pb.Usage())


@dataclass(slots=True)
class Stream:
    """A stream that runs."""

    call: Any
    refusing: Callable[[str], AbstractContextManager[None]]
    read: list[pb.GenerateResponse] = field(default_factory=list)

    def first(self) -> pb.GenerateResponse:
        """Wait for the next message. Raises Refused, Missed."""
        with self.refusing("Generate"):
            message: pb.GenerateResponse | None = next(self.call, None)
        if message is None:
            raise Missed("a message of the stream", "its end")
        self.read.append(message)
        return message

    def rest(self) -> Answer:
        """Return the whole answer, once it has ended. Raises Refused."""
        with self.refusing("Generate"):
            self.read.extend(self.call)
        return Answer(tuple(self.read))

    def cancel(self) -> None:
        """Leave."""
        self.call.cancel()
