"""The lines of a batch: what a request says, what an answer says. Pure; the formats are those of OpenAI's Batch API."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

_PATH = re.compile(r"/v1(/[A-Za-z0-9_-]+)+")
_WITH_PRIORITY = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})
_FIELDS = ("custom_id", "method", "url", "body")


class BadLine(Exception):
    """A line is not what it has to be; the message says why."""


@dataclass(frozen=True, slots=True)
class Item:
    """One request."""

    custom_id: str
    url: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a gateway answered, whatever it was."""

    status: int
    request_id: str
    body: Any

    @property
    def is_done(self) -> bool:
        """Return whether it is the answer that was asked for."""
        return _is_success(self.status)


@dataclass(frozen=True, slots=True)
class NoReply:
    """There was no answer, or none that can be read."""

    code: str
    message: str

    is_done = False


def parse_request(line: str) -> Item:
    """Return the request that a line is. Raises BadLine."""
    read = _object(line)
    for name in _FIELDS:
        if name not in read:
            raise BadLine(f"{name} is missing")
    custom_id, method, url, body = (read[name] for name in _FIELDS)
    if not isinstance(custom_id, str) or not custom_id:
        raise BadLine("custom_id has to be a text that is not empty")
    if method != "POST":
        raise BadLine(f"method is {_short(method)}; allowed: POST")
    if not isinstance(url, str) or not _PATH.fullmatch(url):
        raise BadLine(f"url is {_short(url)}; allowed: a path of the API, such as /v1/chat/completions")
    if not isinstance(body, dict):
        raise BadLine("body has to be an object")
    if body.get("stream"):
        raise BadLine("body.stream is set; allowed: nothing, for a batch has whole answers")
    return Item(custom_id, url, body)


def parse_answered(line: str, known: Container[str]) -> tuple[str, bool]:
    """Return the custom_id of a line of answers, and whether it is done. Raises BadLine, also for ids not `known`."""
    read = _object(line)
    custom_id, response = read.get("custom_id"), read.get("response")
    if not isinstance(custom_id, str) or "response" not in read or "error" not in read:
        raise BadLine("is no answer of a batch")
    if custom_id not in known:
        raise BadLine(f"custom_id {custom_id[:60]!r} is none of the requests'")
    status = response.get("status_code") if isinstance(response, dict) else None
    return custom_id, isinstance(status, int) and _is_success(status)


def answer_line(item: Item, reply: Reply | NoReply, line_id: str) -> str:
    """Return the line that tells what came of a request."""
    response, error = None, None
    if isinstance(reply, Reply):
        response = {"status_code": reply.status, "request_id": reply.request_id, "body": reply.body}
    else:
        error = {"code": reply.code, "message": reply.message}
    line = {"id": f"batch_req_{line_id}", "custom_id": item.custom_id, "response": response, "error": error}
    return json.dumps(line, ensure_ascii=False) + "\n"


def body_of(item: Item, *, model: str | None, priority: int) -> dict[str, Any]:
    """Return what is sent: with another model if one is given, and the priority where it may be said and is not."""
    body = dict(item.body)
    if model is not None:
        body["model"] = model
    if item.url in _WITH_PRIORITY and body.get("priority") is None:
        body["priority"] = priority
    return body


def _is_success(status: int) -> bool:
    return 200 <= status < 300


def _object(line: str) -> dict[str, Any]:
    try:
        read = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"is no JSON: {error}") from error
    if not isinstance(read, dict):
        raise BadLine("is no JSON object")
    return read


def _short(value: Any) -> str:
    shown = json.dumps(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
