"""A hub on this machine: as much of the Hugging Face Hub's file API as a download needs. It misbehaves on order."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

COMMIT = "c0ffee" + "0" * 34


@dataclass
class HubState:
    """What the hub holds, what it was asked, and how it misbehaves."""

    files: dict[str, bytes] = field(default_factory=dict)
    repo: str = "org/tiny"
    revision: str = "main"
    commit: str = COMMIT  # of the revision
    token: str = ""  # needed to read; "" = none
    is_gated: bool = False
    status: int = 0  # answer everything with it; 0 = behave
    sizes: dict[str, int] = field(default_factory=dict)  # by file: announce so many bytes
    cut: dict[str, int] = field(default_factory=dict)  # by file: serve only so many bytes, and call them all
    damage: set[str] = field(default_factory=set)  # serve other bytes than announced
    stall_after: dict[str, int] = field(default_factory=dict)  # by file: send so many bytes, then nothing more
    goes_on: bool = False  # send the rest once it is released; else the connection ends there
    asked: list[tuple[str, str]] = field(default_factory=list)  # path, Range
    stalled: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)

    def metadata(self) -> bytes:
        """Return the repository as the hub describes it: large files carry their SHA-256."""
        siblings = []
        for name, content in self.files.items():
            size = self.sizes.get(name, len(content))
            entry = {"rfilename": name, "size": size, "blobId": "b"}
            if name.endswith(".safetensors"):
                digest = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": size, "pointerSize": 130}
            siblings.append(entry)
        return json.dumps({"id": self.repo, "sha": self.commit, "siblings": siblings}).encode()


class HubServer:
    """Serves a HubState over HTTP while it is open, on a free port if none is given."""

    def __init__(self, address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self.state = state = HubState()

        class Handler(_Handler):
            hub = state

        self._server = ThreadingHTTPServer(address, Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.state.release.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host}:{port}"


class _Handler(BaseHTTPRequestHandler):
    hub: HubState

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.hub.asked.append((path, self.headers.get("Range", "")))
        if refusal := self._refusal(path):
            return self._answer(*refusal)
        if path == f"/api/models/{self.hub.repo}/revision/{self.hub.revision}":
            return self._answer(200, self.hub.metadata(), {"Content-Type": "application/json"})
        name = path.removeprefix(f"/{self.hub.repo}/resolve/{self.hub.commit}/")
        if name in self.hub.files:
            return self._send_file(name)
        return self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})

    def _refusal(self, path: str) -> tuple[int, bytes, dict[str, str]] | None:
        hub = self.hub
        if hub.status:
            return hub.status, b"", {}
        if hub.repo not in path:
            return 401, b"", {"X-Error-Code": "RepoNotFound"} if hub.token else {}
        if hub.is_gated:
            return 403, b"", {"X-Error-Code": "GatedRepo"}
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return 401, b"", {}
        if path.startswith("/api/") and not path.endswith(f"/revision/{hub.revision}"):
            return 404, b"", {"X-Error-Code": "RevisionNotFound"}
        return None

    def _send_file(self, name: str) -> None:
        content = self.hub.files[name][: self.hub.cut.get(name)]
        if name in self.hub.damage:
            content = bytes(len(content))
        begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        if begin >= len(content) > 0:
            return self._answer(416, b"", {})
        rest = content[begin:]
        if name not in self.hub.stall_after:
            return self._answer(206 if begin else 200, rest, {})
        self._head(200, len(rest), {})
        self.wfile.write(rest[: self.hub.stall_after[name]])
        self.wfile.flush()
        self.hub.stalled.set()
        self.hub.release.wait()
        if self.hub.goes_on:
            self.wfile.write(rest[self.hub.stall_after[name] :])
        self.close_connection = True
        return None

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self._head(status, len(body), headers)
        self.wfile.write(body)

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""
