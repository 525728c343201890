"""The one internal request: what the body of any door comes to. What lies behind the doors knows only this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dormouse_api.images import num_image_bytes
from dormouse_api.limits import MAX_MESSAGE_BYTES
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.clients.requests import Request
from dormouse_gateway.openai.errors import too_large

_WHOLE_ANSWER_INTERVAL = 64  # tokens in a message where nobody watches them come


@dataclass(frozen=True, slots=True)
class Wish:
    """What the client wants, and how he wants it told."""

    prompts: tuple[pb.GenerateRequest, ...]  # a call each, at least one; they differ in their prompts only
    is_stream: bool = False
    with_usage: bool = False  # in a chat's or completion's stream
    with_logprobs: bool = False
    with_prompt_logprobs: bool = False
    with_token_ids: bool = False
    echo: bool = False
    without_answer: bool = False  # the one token that a worker makes at least is not told

    @property
    def model(self) -> str:
        """Return the model's name, as the client called it."""
        return str(self.prompts[0].model)

    @property
    def num_choices(self) -> int:
        """Return how many answers each prompt gets. Choice c of prompt p is choice p * num_choices + c of the whole."""
        return max(1, self.prompts[0].sampling_params.n)

    @property
    def needs_prompts(self) -> bool:
        """Return whether something of the prompts is told."""
        return self.echo or self.with_prompt_logprobs or self.with_token_ids


def checked(prompts: Sequence[pb.GenerateRequest], *, is_stream: bool) -> tuple[pb.GenerateRequest, ...]:
    """Return the calls, made ready for how they are read. Raises ApiError for what is too large for a message."""
    for request in prompts:
        if not is_stream:
            request.stream_interval = _WHOLE_ANSWER_INTERVAL
        check_size(request)
    return tuple(prompts)


def check_size(message: Request) -> None:
    """Raise ApiError for what is too large for a message."""
    num_bytes = message.ByteSize() - num_image_bytes(message.chat) if hasattr(message, "chat") else message.ByteSize()
    if num_bytes > MAX_MESSAGE_BYTES:
        raise too_large(f"the request has {num_bytes} bytes as a message", MAX_MESSAGE_BYTES)
