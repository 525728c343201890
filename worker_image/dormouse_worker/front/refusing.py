"""Refusals of requests: each names field, value and limit. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import NoReturn

import grpc

from dormouse_api.limits import MAX_REQUEST_ID_CHARS
from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb


def refuse(field: str, value: str, limit: str, *, reason: str = "") -> NoReturn:
    """Raise the CallError that names all three; programs that must know it from others know it by `reason`."""
    raise CallError(grpc.StatusCode.INVALID_ARGUMENT, f"{field} is {value}; allowed: {limit}", reason=reason)


def check_plain(field: str, text: str, max_chars: int) -> None:
    """At most so many printable ASCII characters. Raises CallError INVALID_ARGUMENT."""
    if len(text) > max_chars:
        refuse(field, f"{len(text)} characters", f"at most {max_chars}")
    if not (text.isascii() and text.isprintable()):
        refuse(field, ascii(text), "printable ASCII characters")


def check_request_id(request_id: str) -> None:
    """Ids stand in logs: short, printable ASCII. Raises CallError INVALID_ARGUMENT."""
    check_plain("request_id", request_id, MAX_REQUEST_ID_CHARS)


def refuse_images(chat: pb.Chat, why: str) -> None:
    """Raise CallError INVALID_ARGUMENT naming the first part that is no text, if there is one."""
    refuse_parts(chat, ("image", "video", "audio"), f"text only: {why}")


def refuse_parts(chat: pb.Chat, kinds: Collection[str], limit: str) -> None:
    """Raise CallError INVALID_ARGUMENT naming the first part of these kinds, if there is one."""
    for number, message in enumerate(chat.messages):
        for place, part in enumerate(message.parts):
            if (kind := part.WhichOneof("part")) in kinds:
                refuse(f"chat.messages[{number}].parts[{place}].{kind}", "set", limit)
