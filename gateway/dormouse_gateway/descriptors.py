"""How many files, connections among them, the process may open, and how many of these clients may have."""

from __future__ import annotations

import resource
from dataclasses import dataclass

_ENOUGH = 1 << 16  # the limits on memory are reached long before


@dataclass(frozen=True, slots=True)
class Shares:
    """Connections of clients. What is left, a quarter, is for workers, the API server, metrics and the program."""

    http: int
    grpc: int


def share(num_files: int, wanted_http: int) -> Shares:
    """Divide the files that may be open: at most half for HTTP, a quarter for gRPC."""
    return Shares(max(1, min(wanted_http, num_files // 2)), max(1, num_files // 4))


def limit() -> int:
    """Return how many files the process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENOUGH if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> None:
    """Have the kernel allow as many open files as it does without asking anybody, where it allows fewer by default."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if limit() < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
