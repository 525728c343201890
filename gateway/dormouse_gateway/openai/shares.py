"""Long lists of texts, that go to workers in parts: how they are shared out, asked for, and told of in refusals."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from dormouse_api.limits import MAX_EMBED_INPUTS, MAX_SCORE_DOCUMENTS
from dormouse_api.status import CallError
from dormouse_gateway.openai.schema_kit import Json, array, fields, text

MAX_PART_INPUTS = 16  # of one call: vectors of 15,000 numbers fit its answer
MAX_PART_CHARS = 64 << 10  # of several inputs in one call; one alone may have more
AT_ONCE = 8  # parts of one body that are with workers, or wait for one
_PLACE = re.compile(r"^(inputs|documents)\[(\d+)\](\.token_ids)?")

_NUMBER: Json = {"type": "number"}
USAGE = fields({"prompt_tokens": _NUMBER, "total_tokens": _NUMBER}, "prompt_tokens", "total_tokens")

Asked = TypeVar("Asked")
Told = TypeVar("Told")


@dataclass(frozen=True, slots=True)
class Part(Generic[Asked]):
    """Neighbours among a body's inputs, in one call."""

    start: int  # the place of its first one
    request: Asked
    name: str  # of the list, in the body
    query: str = "query"  # what the body calls what each of the list is scored with


def shared_out(inputs: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the inputs of each part, in order. Pure."""
    part: list[Any] = []
    size = 0
    for one in inputs:
        if part and (len(part) == MAX_PART_INPUTS or size + len(one) > MAX_PART_CHARS):
            yield part
            part, size = [], 0
        part.append(one)
        size += len(one)
    yield part


async def ask_parts(parts: Sequence[Part[Asked]], ask: Callable[[Asked], Awaitable[Told]]) -> list[Told]:
    """Return the answer to each part, in order; the first failure ends all. Raises CallError."""
    room = asyncio.Semaphore(AT_ONCE)

    async def ask_one(part: Part[Asked]) -> Told:
        async with room:
            try:
                return await ask(part.request)
            except CallError as error:
                raise replace(error, message=_as_written(error.message, part)) from error

    try:
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(ask_one(part)) for part in parts]
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return [task.result() for task in asked]


def named_as_written(message: str, name: str, start: int) -> str:
    """Return a worker's refusal with the input's place in the whole list of this name. Pure."""
    return _PLACE.sub(lambda found: f"{name}[{int(found[2]) + start}]", message)


def _as_written(message: str, part: Part[Asked]) -> str:
    said = named_as_written(message, part.name, part.start)
    return part.query + said.removeprefix("query") if said.startswith("query is ") else said


def listed(one: Json) -> Json:
    """Return the schema of an answer with one of these for each input. Pure."""
    head = {"id": text(), "object": {"const": "list"}, "model": text()}
    whole = {**head, "data": array(one, max(MAX_EMBED_INPUTS, MAX_SCORE_DOCUMENTS)), "usage": USAGE}
    return fields(whole, *whole)
