"""Is a component ready? Probes are values; `is_ready` asks the world once and never raises."""

from __future__ import annotations

import socket
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Http:
    """Ready when the URL answers 200. With `client`, `client.crt` and `client.key` are shown and `ca` is checked."""

    url: str
    ca: Path | None = None
    client: Path | None = None  # path without suffix


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """Ready when something accepts connections there."""

    path: Path


@dataclass(frozen=True, slots=True)
class FileExists:
    """Ready when the file is there; it must be removed before the component starts."""

    path: Path


Probe = Http | UnixSocket | FileExists


def tls_context(ca: Path | None, client: Path | None) -> ssl.SSLContext:
    """Return a client context; without a CA the server is taken as it is, which only loopback addresses may get."""
    context = ssl.create_default_context(cafile=str(ca) if ca else None)
    if ca is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if client is not None:
        context.load_cert_chain(f"{client}.crt", f"{client}.key")
    return context


def _http_ok(probe: Http) -> bool:
    https = urllib.request.HTTPSHandler(context=tls_context(probe.ca, probe.client))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), https)  # never through a proxy
    with opener.open(probe.url, timeout=TIMEOUT_S) as answer:
        return int(answer.status) == 200


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.connect(str(path))
    return True


def is_ready(probe: Probe) -> bool:
    """Ask once; every error means no."""
    try:
        match probe:
            case Http():
                return _http_ok(probe)
            case UnixSocket(path):
                return _accepts(path)
            case FileExists(path):
                return path.exists()
    except (OSError, urllib.error.URLError, ssl.SSLError, ValueError):
        return False
