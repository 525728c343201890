"""What the API server's answers mean: the events of a watch, and every failure as an error of ours. Sends nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import aiohttp

from dormouse_kube.api import WatchEvent
from dormouse_kube.errors import Conflict, Forbidden, Gone, Invalid, KubeError, NotFound, Unavailable

_NAMED: Mapping[int, type[KubeError]] = {
    400: Invalid,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
}


@contextmanager
def foreign_errors(call: str) -> Iterator[None]:
    """Map what aiohttp and the parser raise during a call: whatever breaks below HTTP is Unavailable."""
    try:
        yield
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        words = str(error) or type(error).__name__
        raise Unavailable(f"{call}: {words}") from error


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> KubeError:
    """Return the error that an HTTP answer of status 400 and above tells."""
    return _to_error(status, _parse_status(body), _retry_after_s(headers))


async def events(content: aiohttp.StreamReader) -> AsyncIterator[WatchEvent]:
    """Yield the events of a watch; raise what an ERROR event says."""
    async for line in _lines(content):
        raw = json.loads(line)
        if raw["type"] == "ERROR":
            raise _to_error(int(raw["object"].get("code") or 500), raw["object"], None)
        yield WatchEvent(raw["type"], raw["object"])


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the stream's lines, of any length: StreamReader.readline fails on those longer than its buffer."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line


def _parse_status(body: bytes) -> Mapping[str, Any]:
    """Return the Status object of an error's body; a proxy in between may have written something else."""
    try:
        parsed = json.loads(body)
    except ValueError:
        return {"message": body[:200].decode(errors="replace")}
    return parsed if isinstance(parsed, dict) else {}


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the server's Retry-After in seconds; a date, which Kubernetes never sends, counts as none."""
    value = headers.get("Retry-After", "")
    return float(value) if value.isdigit() else None


def _to_error(status: int, body: Mapping[str, Any], retry_after_s: float | None) -> KubeError:
    """Return the error of an HTTP status and the Status object that came with it."""
    message = str(body.get("message") or f"HTTP {status}")
    reason = str(body.get("reason") or "")
    # 401: the token may just have been rotated; the next call reads it anew
    if status in {401, 408, 429} or status >= 500:
        return Unavailable(message, status=status, reason=reason, retry_after_s=retry_after_s)
    return _NAMED.get(status, KubeError)(message, status=status, reason=reason)
