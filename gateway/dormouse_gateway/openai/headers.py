"""What of a request's headers goes on to the worker, and under which id a request runs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dormouse_api.limits import MAX_REQUEST_ID_CHARS
from dormouse_api.names import METADATA_CACHE_SALT, METADATA_CALLER, METADATA_CANARY, METADATA_TICKET
from dormouse_gateway.clients.requests import Metadata
from dormouse_gateway.openai.errors import ApiError

MAX_HEADER_BYTES = 16 << 10
REQUEST_ID = "x-request-id"
ANTHROPICS_ID = "request-id"  # where Anthropic's clients look for it
_ANTHROPICS_KEY = "x-api-key"
_DECIDING = ("authorization", METADATA_TICKET, METADATA_CALLER, METADATA_CACHE_SALT, METADATA_CANARY)
_TRACE = {  # W3C trace context: what is malformed is not passed on, as the standard wants it
    "traceparent": re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?"),
    "tracestate": re.compile(r"[ -~]{1,512}"),
}
_ID = re.compile(rf"[!-~]{{1,{MAX_REQUEST_ID_CHARS}}}")

Headers = Iterable[tuple[bytes, bytes]]


def check_size(headers: Headers) -> None:
    """Refuse too many bytes of headers: h11 counts only what comes in several parts. Raises ApiError."""
    size = sum(len(name) + len(value) + 4 for name, value in headers)
    if size > MAX_HEADER_BYTES:
        raise ApiError(431, f"the headers have {size} bytes; the limit is {MAX_HEADER_BYTES}")


def check_framing(headers: Headers) -> None:
    """Refuse a body whose end is told in two ways: a proxy before us may have read the other one. Raises ApiError."""
    if {b"content-length", b"transfer-encoding"} <= {name.lower() for name, _ in headers}:
        words = "content-length and transfer-encoding are both given; allowed is one of them"
        raise ApiError(400, words, is_last=True)


def to_metadata(headers: Headers) -> Metadata:
    """Return the key (which decides about rights and cached prefixes, and goes no further) and the trace context.

    And what only a gateway may say, to who can tell whether it was one: see `beside`.
    """
    decoded = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers]
    named = [
        ("authorization", f"Bearer {value}") if name == _ANTHROPICS_KEY else (name, value) for name, value in decoded
    ]
    return tuple(
        (name, value)
        for name, value in dict.fromkeys(named)  # one key that is sent in both ways is one
        if name in _DECIDING or (name in _TRACE and _TRACE[name].fullmatch(value))
    )


def request_id(headers: Headers) -> str | None:
    """Return the client's id for the request, None if it gave none. Raises ApiError."""
    given = [value.decode("latin-1") for name, value in headers if name.lower() == REQUEST_ID.encode()]
    if not given or not given[0]:
        return None
    if not _ID.fullmatch(given[0]):
        raise ApiError(
            400, f"{REQUEST_ID} has to be 1 to {MAX_REQUEST_ID_CHARS} printable ASCII characters", param=REQUEST_ID
        )
    return given[0]
