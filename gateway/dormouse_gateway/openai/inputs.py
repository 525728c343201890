"""What bodies of whole texts have in common: `input` and how it is used, its calls, and an answer text by text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from dormouse_api.limits import MAX_EMBED_INPUTS, MAX_MESSAGE_BYTES
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.openai.schema_kit import BOOLEAN, array, integer, one_of, text
from dormouse_gateway.openai.schemas import PRIORITY, TOKEN_ID
from dormouse_gateway.openai.shapes import Json
from dormouse_gateway.openai.shares import Part, shared_out
from dormouse_gateway.openai.wish import check_size

INPUT = one_of(
    text(1),
    array(text(1), MAX_EMBED_INPUTS, least=1),
    array(TOKEN_ID, MAX_MESSAGE_BYTES, least=1),
    array(array(TOKEN_ID, MAX_MESSAGE_BYTES, least=1), MAX_EMBED_INPUTS, least=1),
    description=f"One text or its token ids, or a list of either: at most {MAX_EMBED_INPUTS}.",
)
USER = text() | {"description": "Without effect: who asks is told by the API key."}
USE: Mapping[str, Json] = {
    "truncate_prompt_tokens": integer(-1, (1 << 31) - 1)
    | {"description": "So many tokens of a text are used at most; -1: as many as the model takes."},
    "add_special_tokens": BOOLEAN | {"description": "To texts. Default: true."},
    "priority": PRIORITY,
}

Asked = TypeVar("Asked", pb.EmbedRequest, pb.ClassifyRequest)


class Answer(Protocol):
    """A worker's answer to one call."""

    @property
    def usage(self) -> pb.Usage:
        """Return the tokens of its texts."""


def input_parts(body: Mapping[str, Any], begin: Callable[[], Asked]) -> list[Part[Asked]]:
    """Return the calls for a body with INPUT and USE, each begun with what else it says. Pure. Raises ApiError."""
    parts, start = [], 0
    for inputs in shared_out(_inputs(body["input"])):
        asked = begin()
        asked.model, asked.priority = body["model"], int(body.get("priority", 0))
        if "add_special_tokens" in body:
            asked.add_special_tokens = body["add_special_tokens"]
        if "truncate_prompt_tokens" in body:
            asked.truncate_prompt_tokens = int(body["truncate_prompt_tokens"])
        for one in inputs:
            if isinstance(one, str):
                asked.inputs.add(text=one)
            else:
                asked.inputs.add().token_ids.ids.extend(map(int, one))
        check_size(asked)
        parts.append(Part(start, asked, "input"))
        start += len(inputs)
    return parts


def num_calls(body: Mapping[str, Any]) -> int:
    """Return how many calls a body with INPUT comes to. Pure."""
    return sum(1 for _ in shared_out(_inputs(body["input"])))


def usage_of(answers: Sequence[Answer]) -> Json:
    """Return the usage of all calls of a body. Pure."""
    num_tokens = sum(answer.usage.prompt_tokens for answer in answers)
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


async def written(data: Iterable[Json], rest: Json) -> AsyncIterator[str]:
    """Yield a list with these and the rest, one by one: numbers by the million would stop other streams for seconds."""
    for index, one in enumerate(data):
        await asyncio.sleep(0)
        yield ("," if index else '{"object":"list","data":[') + _json(one)
    yield f"],{_json(rest)[1:]}"


def _json(told: object) -> str:
    return json.dumps(told, allow_nan=False, separators=(",", ":"))


def _inputs(said: Any) -> list[Any]:
    """Return the inputs: texts, or lists of token ids."""
    return [said] if isinstance(said, str) or isinstance(said[0], int | float) else said
