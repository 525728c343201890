"""The doors at which text is asked for: for each what a body may say, what it comes to, and how its answer looks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from dormouse_gateway.openai import refused
from dormouse_gateway.openai.answers import Form
from dormouse_gateway.openai.checking import Schema
from dormouse_gateway.openai.choices import chat_form, completion_form
from dormouse_gateway.openai.errors import ApiError
from dormouse_gateway.openai.mapping import Body, to_chat, to_completion
from dormouse_gateway.openai.schemas import CHAT_REQUEST, COMPLETION_REQUEST
from dormouse_gateway.openai.wish import Wish


@dataclass(frozen=True, slots=True)
class Door:
    """One way to ask for text. Behind it all go the same way."""

    path: str
    schema: Schema
    refused: Mapping[str, str]  # parameter → why it is not taken
    to_wish: Callable[[Body, str], Wish]
    form: Callable[[Body, Wish, str, float], Form]  # body, wish, request id, Unix time
    names: Mapping[str, tuple[str, ...]]  # what a worker calls a field → what it may be called here

    def named(self, error: ApiError, body: Body) -> ApiError:
        """Return a worker's refusal under the name by which the client wrote the field."""
        at_fault = f"{error.param}."
        names = [name for field, theirs in self.names.items() if at_fault.startswith(f"{field}.") for name in theirs]
        written = next((name for name in names if name in body), None)
        return replace(error, param=written) if written else error


_FORM = ("structured_outputs", "response_format")

CHAT_DOOR = Door(
    "/v1/chat/completions",
    CHAT_REQUEST,
    refused.CHAT,
    to_chat,
    chat_form,
    {
        "prompt": ("messages",),
        "prompt.chat": ("messages",),
        "structured_outputs": _FORM,
        "max_tokens": ("max_completion_tokens", "max_tokens"),
    },
)
COMPLETION_DOOR = Door(
    "/v1/completions",
    COMPLETION_REQUEST,
    refused.COMPLETION,
    to_completion,
    completion_form,
    {"prompt.text": ("prompt",), "prompt.token_ids": ("prompt",), "structured_outputs": _FORM},
)
DOORS = (CHAT_DOOR, COMPLETION_DOOR)
