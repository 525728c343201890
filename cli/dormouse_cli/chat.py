"""A conversation: owns what was said so far. Knows nothing of terminals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from dormouse_api.v1 import inference_pb2 as pb


class Generator(Protocol):
    """What a conversation needs of a client."""

    def generate(self, request: pb.GenerateRequest) -> Iterator[pb.GenerateResponse]:
        """Yield the answer's messages."""
        ...


@dataclass(slots=True)
class Conversation:
    """Turns of user and assistant, in order. A turn counts only when its answer came to an end."""

    client: Generator
    model: str
    sampling: pb.SamplingParams
    messages: list[pb.ChatMessage] = field(default_factory=list)

    def say(self, text: str) -> Iterator[pb.GenerateResponse]:
        """Yield the answer to this turn, and remember both once it is complete."""
        question = pb.ChatMessage(role="user", content=text)
        chat = pb.Chat(messages=[*self.messages, question])
        answer: list[str] = []
        request = pb.GenerateRequest(model=self.model, chat=chat, sampling_params=self.sampling)
        for response in self.client.generate(request):
            answer.append(response.text)
            yield response
        self.messages += [question, pb.ChatMessage(role="assistant", content="".join(answer))]
