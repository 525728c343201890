"""Errors as OpenAI's clients know them, and the one place where gRPC codes become HTTP statuses. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from dormouse_api.status import CONTEXT_LENGTH_EXCEEDED, IMAGE_UNKNOWN, CallError

_Code = grpc.StatusCode
_KINDS: Mapping[grpc.StatusCode, tuple[int, str, str | None]] = {  # status, type, code
    _Code.INVALID_ARGUMENT: (400, "invalid_request_error", None),
    _Code.FAILED_PRECONDITION: (400, "invalid_request_error", None),
    _Code.OUT_OF_RANGE: (400, "invalid_request_error", None),
    _Code.UNAUTHENTICATED: (401, "authentication_error", "invalid_api_key"),
    _Code.PERMISSION_DENIED: (403, "permission_error", None),
    _Code.NOT_FOUND: (404, "invalid_request_error", "model_not_found"),
    _Code.RESOURCE_EXHAUSTED: (429, "rate_limit_error", "rate_limit_exceeded"),
    _Code.UNAVAILABLE: (503, "server_error", "unavailable"),
    _Code.CANCELLED: (503, "server_error", "unavailable"),
    _Code.DEADLINE_EXCEEDED: (504, "server_error", "timeout"),
}
_ANTHROPIC_KINDS: Mapping[int, str] = {
    **dict.fromkeys((400, 408, 415, 431), "invalid_request_error"),
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_CODES = {  # by reason; OpenAI's, where it has one
    CONTEXT_LENGTH_EXCEEDED: "context_length_exceeded",
    IMAGE_UNKNOWN: "image_unknown",
}
_UNEXPECTED = (500, "server_error", None)
_RETRY = (429, 503)
_RETRY_S = 1.0  # where nobody said more
_FIELD = re.compile(r"(?:sampling_params\.)?([a-z]\w*(?:[.\[]\w+\]?)*) is ")  # how our refusals begin


@dataclass(slots=True)
class ApiError(Exception):
    """A request ends with this. `param` is the field of the body that is at fault."""

    status: int
    message: str
    kind: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None
    more: Mapping[str, str] = field(default_factory=dict)  # headers besides
    is_last: bool = False  # nothing that follows on the connection can be trusted to be a request

    def __str__(self) -> str:
        """Return the sentence that the client sees."""
        return self.message

    def with_headers(self, headers: Mapping[str, str]) -> ApiError:
        """Return it with these headers besides."""
        self.more = {**self.more, **headers}
        return self

    @property
    def body(self) -> dict[str, Any]:
        """Return OpenAI's error object."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """Return what HTTP says besides: when to come again, how to prove oneself."""
        headers = {**self.more, "content-type": "application/json"}
        if self.status in _RETRY:
            headers["retry-after"] = str(max(1, math.ceil(self.retry_after_s or _RETRY_S)))
        if self.status == 401:  # HTTP's own numbers
            headers["www-authenticate"] = "Bearer"
        if self.is_last:
            headers["connection"] = "close"
        return headers


Words = Callable[[ApiError, str], dict[str, Any]]  # error, request id → the body that says it


def openai_body(error: ApiError, _request_id: str) -> dict[str, Any]:
    """Return OpenAI's error object."""
    return error.body


def anthropic_body(error: ApiError, request_id: str) -> dict[str, Any]:
    """Return Anthropic's error object, which has no place of its own for the field."""
    names_it = error.param is None or error.param in error.message
    message = error.message if names_it else f"{error.param}: {error.message}"
    kind = _ANTHROPIC_KINDS.get(error.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def encoded(body: dict[str, Any]) -> bytes:
    """Return the body as JSON. What is no text is told as JSON tells it: a refusal must never fail itself."""
    return json.dumps(body, ensure_ascii=False).encode(errors="backslashreplace")


def from_call_error(error: CallError) -> ApiError:
    """Return what the API says of an error of gateway or worker."""
    status, kind, code = _KINDS.get(error.code, _UNEXPECTED)
    named = _FIELD.match(error.message) if status == 400 else None  # HTTP's own numbers
    code = _CODES.get(error.reason, code)
    return ApiError(status, error.message, kind, named[1] if named else None, code, error.retry_after_s)


def refuse(param: str, value: str, limit: str) -> ApiError:
    """Return the refusal of a field, which names it, its value and what is allowed."""
    return ApiError(400, f"{param} is {value}; allowed: {limit}", param=param)


def too_large(what: str, limit_bytes: int) -> ApiError:
    """Return the refusal of a body."""
    return ApiError(413, f"{what}; the limit is {limit_bytes} bytes", code="request_too_large")
