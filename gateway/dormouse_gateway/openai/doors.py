"""The doors: for each what a body may say, what it comes to, and how its answer looks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

from starlette.responses import Response

from dormouse_gateway.openai import refused
from dormouse_gateway.openai.answers import Form
from dormouse_gateway.openai.checking import Schema
from dormouse_gateway.openai.choices import chat_form, completion_form
from dormouse_gateway.openai.classify import CLASSIFY_REQUEST, classify
from dormouse_gateway.openai.decisions.asking import decisions
from dormouse_gateway.openai.decisions.schemas import DECISIONS_REQUEST, SYSTEMONE_REQUEST
from dormouse_gateway.openai.decisions.systemone import systemone
from dormouse_gateway.openai.embeddings import EMBEDDINGS_REQUEST, embeddings
from dormouse_gateway.openai.errors import ApiError, Words, anthropic_body, openai_body
from dormouse_gateway.openai.inputs import num_calls
from dormouse_gateway.openai.mapping import Body, to_chat, to_completion
from dormouse_gateway.openai.messages.form import message_form
from dormouse_gateway.openai.messages.mapping import count, to_message
from dormouse_gateway.openai.messages.schemas import COUNT_REQUEST, MESSAGES_REQUEST
from dormouse_gateway.openai.responses.form import response_form
from dormouse_gateway.openai.responses.mapping import to_response
from dormouse_gateway.openai.responses.schemas import RESPONSES_REQUEST
from dormouse_gateway.openai.schemas import CHAT_REQUEST, COMPLETION_REQUEST
from dormouse_gateway.openai.scores import (
    RERANK_REQUEST,
    SCORE_REQUEST,
    num_rerank_calls,
    num_score_calls,
    rerank,
    score,
)
from dormouse_gateway.openai.shapes import Json
from dormouse_gateway.openai.texts import WorkerTexts
from dormouse_gateway.openai.tokens import DETOKENIZE_REQUEST, TOKENIZE_REQUEST, detokenize, tokenize
from dormouse_gateway.openai.wish import Wish


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """One path that takes a body."""

    path: str
    schema: Schema
    refused: Mapping[str, str]  # parameter → why it is not taken
    names: Mapping[str, tuple[str, ...]]  # what a worker calls a field → what it may be called here
    words: Words = openai_body  # in which it refuses
    takes_images: bool = False

    def named(self, error: ApiError, body: Body) -> ApiError:
        """Return a worker's refusal under the name by which the client wrote the field."""
        at_fault = error.param or ""
        names = [name for field, theirs in self.names.items() if _lies_in(at_fault, field) for name in theirs]
        written = next((name for name in names if name in body), None)
        return replace(error, param=written) if written else error


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDoor(Door):
    """One way to ask for text. Behind it all go the same way."""

    to_wish: Callable[[Body, str], Wish]
    form: Callable[[Body, Wish, str, float], Form]  # body, wish, request id, Unix time


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionDoor(Door):
    """One thing to ask for that is answered whole."""

    answer: Callable[[Body, WorkerTexts], Coroutine[Any, Any, Json | Response]]
    num_calls: Callable[[Body], int] = lambda _body: 1  # that a body comes to: so many requests of a key's rate


def _lies_in(path: str, field: str) -> bool:
    return path == field or path.startswith((f"{field}.", f"{field}["))


_FORM = ("structured_outputs", "response_format")

_CHAT = {
    "prompt": ("messages",),
    "prompt.chat": ("messages",),
    "chat.messages": ("messages",),
    "chat.tools": ("tools",),
    "chat.template_args": ("chat_template_kwargs",),
    "chat.continue_final_message": ("continue_final_message",),
}

CHAT_DOOR = TextDoor(
    path="/v1/chat/completions",
    takes_images=True,
    schema=CHAT_REQUEST,
    refused=refused.CHAT,
    names={
        **_CHAT,
        "structured_outputs": _FORM,
        "answer_parsing": ("tool_choice", "tools"),
        "max_tokens": ("max_completion_tokens", "max_tokens"),
    },
    to_wish=to_chat,
    form=chat_form,
)
COMPLETION_DOOR = TextDoor(
    path="/v1/completions",
    schema=COMPLETION_REQUEST,
    refused=refused.COMPLETION,
    names={"prompt": ("prompt",), "structured_outputs": _FORM},
    to_wish=to_completion,
    form=completion_form,
)
TOKENIZE_DOOR = QuestionDoor(
    path="/tokenize",
    schema=TOKENIZE_REQUEST,
    refused=refused.TOKENIZE,
    names=_CHAT,
    answer=tokenize,
    takes_images=True,
)
DETOKENIZE_DOOR = QuestionDoor(
    path="/detokenize",
    schema=DETOKENIZE_REQUEST,
    refused={},
    names={"token_ids": ("tokens",)},
    answer=detokenize,
)
_MESSAGES = {
    "prompt": ("messages",),
    "chat.messages": ("messages",),
    "chat.continue_final_message": ("messages",),
    "chat.template_args": ("output_config", "thinking"),
    "stop": ("stop_sequences",),
    "structured_outputs": ("output_config",),
    "chat.tools": ("tools",),
    "answer_parsing": ("tool_choice", "tools"),
}
MESSAGES_DOOR = TextDoor(
    path="/v1/messages",
    takes_images=True,
    schema=MESSAGES_REQUEST,
    refused=refused.MESSAGES,
    names=_MESSAGES,
    words=anthropic_body,
    to_wish=to_message,
    form=message_form,
)
COUNT_DOOR = QuestionDoor(
    path="/v1/messages/count_tokens",
    takes_images=True,
    schema=COUNT_REQUEST,
    refused=refused.MESSAGES,
    names=_MESSAGES,
    words=anthropic_body,
    answer=count,
)
RESPONSES_DOOR = TextDoor(
    path="/v1/responses",
    takes_images=True,
    schema=RESPONSES_REQUEST,
    refused=refused.RESPONSES,
    names={
        "prompt": ("input",),
        "chat.messages": ("input",),
        "chat.tools": ("tools",),
        "chat.template_args": ("reasoning",),
        "structured_outputs": ("text",),
        "answer_parsing": ("tool_choice", "tools"),
        "max_tokens": ("max_output_tokens",),
    },
    to_wish=to_response,
    form=response_form,
)
TEXT_DOORS = (CHAT_DOOR, COMPLETION_DOOR, RESPONSES_DOOR, MESSAGES_DOOR)
EMBEDDINGS_DOOR = QuestionDoor(
    path="/v1/embeddings",
    schema=EMBEDDINGS_REQUEST,
    refused={},
    names={"inputs": ("input",)},
    answer=embeddings,
    num_calls=num_calls,
)
RERANK_DOORS = tuple(
    QuestionDoor(
        path=path,
        schema=RERANK_REQUEST,
        refused=refused.RERANK,
        names={},
        answer=rerank,
        num_calls=num_rerank_calls,
    )
    for path in ("/v1/rerank", "/v2/rerank", "/rerank")
)
SCORE_DOORS = tuple(
    QuestionDoor(
        path=path,
        schema=SCORE_REQUEST,
        refused={},
        names={"query": ("text_1",), "documents": ("text_2",)},
        answer=score,
        num_calls=num_score_calls,
    )
    for path in ("/v1/score", "/score")
)
CLASSIFY_DOOR = QuestionDoor(
    path="/classify",
    schema=CLASSIFY_REQUEST,
    refused={},
    names={"inputs": ("input",)},
    answer=classify,
    num_calls=num_calls,
)
_DECIDED = {"text": ("input", "state"), "chat": ("input", "state"), "prompt.chat": ("input", "state")}
DECISIONS_DOOR = QuestionDoor(
    path="/v1/decisions", schema=DECISIONS_REQUEST, refused={}, names=_DECIDED, answer=decisions
)
SYSTEMONE_DOOR = QuestionDoor(
    path="/v1/systemone", schema=SYSTEMONE_REQUEST, refused=refused.SYSTEMONE, names=_DECIDED, answer=systemone
)
QUESTION_DOORS = (
    DECISIONS_DOOR,
    SYSTEMONE_DOOR,
    EMBEDDINGS_DOOR,
    *RERANK_DOORS,
    *SCORE_DOORS,
    CLASSIFY_DOOR,
    TOKENIZE_DOOR,
    DETOKENIZE_DOOR,
    COUNT_DOOR,
)
DOORS: tuple[Door, ...] = (*TEXT_DOORS, *QUESTION_DOORS)
