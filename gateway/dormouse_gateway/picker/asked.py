"""From a request's body to what routing needs of it, by the same doors as our own HTTP API. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import grpc

from dormouse_gateway.clients.requests import Request
from dormouse_gateway.model import Meant
from dormouse_gateway.openai.bodies import check_type
from dormouse_gateway.openai.doors import (
    COUNT_DOOR,
    DETOKENIZE_DOOR,
    DOORS,
    TOKENIZE_DOOR,
    Door,
    QuestionDoor,
    TextDoor,
)
from dormouse_gateway.openai.mapping import Body
from dormouse_gateway.openai.pictures import places
from dormouse_gateway.openai.reading import parse_json, read_body
from dormouse_gateway.picker.head import Head
from dormouse_gateway.routing.breaker import Verdict
from dormouse_gateway.routing.demand import read_demand
from dormouse_gateway.routing.policy import Demand

_BY_PATH: Mapping[str, Door] = {door.path: door for door in DOORS}
_ANSWERED_ASLEEP = (TOKENIZE_DOOR, DETOKENIZE_DOOR, COUNT_DOOR)
_FAILED = (500, 502)
_REFUSED = 503
_FULL = 429
_CODES = {
    _FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    502: grpc.StatusCode.UNAVAILABLE,
    _REFUSED: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked request."""

    door: Door
    body: Body
    raw: bytes
    model: str
    num_calls: int  # so much of its key's rate it takes
    first: Request | None = None  # of its calls; None = what brings no text

    @property
    def need_ready(self) -> bool:
        """Return whether only a worker that is awake can answer."""
        return self.door not in _ANSWERED_ASLEEP

    def demand(self, salt: str, meant: Meant) -> Demand:
        """Return what it will cost a worker."""
        return read_demand(self.first, num_bytes=len(self.raw), salt=salt, adapter=meant.adapter)

    def named(self, name: str) -> bytes:
        """Return the body that asks for the model by this name, which its worker knows."""
        if name == self.model:
            return self.raw
        return json.dumps(parse_json(self.raw) | {"model": name}, ensure_ascii=False, separators=(",", ":")).encode()


def door_of(head: Head) -> Door | None:
    """Return which door is asked for, None if none: there is nothing there, or nothing that a worker would do."""
    return _BY_PATH.get(head.path) if head.method == "POST" else None


def read_asked(door: Door, head: Head, raw: bytes, request_id: str) -> Asked:
    """Return what the body asks for. Raises ApiError."""
    check_type(head.value("content-type"))
    body = read_body(raw, door.schema, door.refused)
    if any(places(body)):  # what they say is the pod's own API's affair
        return Asked(door, body, raw, str(body["model"]), 1)
    if isinstance(door, TextDoor):
        wish = door.to_wish(body, request_id)
        return Asked(door, body, raw, wish.model, len(wish.prompts), wish.prompts[0])
    assert isinstance(door, QuestionDoor), "there are no others"
    return Asked(door, body, raw, str(body["model"]), door.num_calls(body))


def verdict_of(status: int) -> Verdict:
    """Return what the status of a response says about its worker; Envoy's own 503 means that it was not to be had."""
    if status in _FAILED:
        return Verdict.FAILED
    if status == _REFUSED:
        return Verdict.REFUSED
    return Verdict.NOTHING if status == _FULL or status > _REFUSED else Verdict.GOOD


def code_of(status: int) -> grpc.StatusCode:
    """Return what a response's status would be at our gRPC API, as far as a canary is judged by it."""
    if status < 400:
        return grpc.StatusCode.OK
    return _CODES.get(status, grpc.StatusCode.INTERNAL if status >= 500 else grpc.StatusCode.INVALID_ARGUMENT)
