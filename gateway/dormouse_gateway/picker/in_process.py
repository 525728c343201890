"""Asks our own HTTP API within the process: what needs no worker, and paths that are not there, it answers itself."""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp

from dormouse_api.foreign import ext_proc_pb2 as pb
from dormouse_gateway.picker import answers
from dormouse_gateway.picker.head import Head


async def answered(app: ASGIApp, head: Head) -> pb.ProcessingResponse:
    """Return the API's response to a request without a body."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": head.method,
        "scheme": "http",
        "path": head.path,
        "raw_path": head.path.encode("latin-1", "replace"),
        "query_string": head.query.encode("latin-1", "replace"),
        "root_path": "",
        "headers": head.headers,
        "client": None,
        "server": None,
    }
    said: dict[str, Any] = {"status": 500, "headers": ()}
    body = bytearray()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        said.update(message)
        body.extend(message.get("body", b""))

    await app(scope, receive, send)
    kept = [(key.decode("latin-1"), value.decode("latin-1")) for key, value in said["headers"]]
    headers = [(key, value) for key, value in kept if key != "content-length"]
    return answers.instead(said["status"], headers, bytes(body), details="dormouse_answered")
