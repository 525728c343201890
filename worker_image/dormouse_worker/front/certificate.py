"""The worker's certificate, where it has one: read at start, renewed while it serves, its end told as a metric."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from grpc import aio
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from dormouse_api.auth import Proofs
from dormouse_api.mutual_tls import MutualTls, follow_directory, read_bundle
from dormouse_api.peers import RequirePeer


def show_expiry(registry: CollectorRegistry, expiry_s: Callable[[], float]) -> None:
    """Show for how long the worker's certificate lasts, as this says."""
    words = "For how long the worker's own certificate is still accepted; below 0 it is not."
    Gauge("dormouse_certificate_expiry_seconds", words, registry=registry).set_function(expiry_s)


class Certificate:
    """Owns the certificate and the task that follows its files. Without a directory all ports are plain."""

    def __init__(self, directory: str) -> None:
        """Read the files in the directory, "" for none. Raises TlsError."""
        self._directory = Path(directory)
        self._tls = MutualTls(read_bundle(self._directory)) if directory else None
        self._following: asyncio.Task[None] | None = None
        self._registry = CollectorRegistry()
        if self._tls:
            tls = self._tls
            show_expiry(self._registry, lambda: tls.expiry_s)

    def __repr__(self) -> str:
        return f"Certificate({self._tls!r})"

    def guards(self, proofs: Proofs) -> list[aio.ServerInterceptor]:  # type: ignore[type-arg]  # in the stubs only
        """Return what lets in only whom a certificate allows; nothing without certificates."""
        return [RequirePeer(self._tls.identity, proofs)] if self._tls else []

    def add_port(self, server: aio.Server, address: str) -> int:
        """Bind, and return the port. Raises RuntimeError if it is taken."""
        if self._tls:
            return server.add_secure_port(address, self._tls.server_credentials())
        return server.add_insecure_port(address)

    def text(self) -> bytes:
        """Return the metrics."""
        return generate_latest(self._registry)

    def follow(self) -> None:
        """Take renewed files from now on."""
        if self._tls:
            self._following = asyncio.create_task(follow_directory(self._tls, self._directory))

    def close(self) -> None:
        """Follow no longer; safe if it did not."""
        if self._following:
            self._following.cancel()
