"""A client for models that Dormouse serves: `Client` for threads, `AsyncClient` for asyncio.

    from dormouse_api.client import Client

    with Client("127.0.0.1:50051") as client:
        for piece in client.generate_text("llama", "Once upon a time", max_tokens=50):
            print(piece, end="", flush=True)

Every error is a `ClientError`; its kinds say who has to act. Calls are retried by themselves where the server says
that it may be tried again (UNAVAILABLE with RetryInfo, RESOURCE_EXHAUSTED), within the call's own time limit, and
never once the first message of an answer has come. Depends on grpcio
(with grpcio-status) and protobuf only.
"""

from __future__ import annotations

from dormouse_api.client.aio import AsyncClient
from dormouse_api.client.errors import (
    Cancelled,
    ClientError,
    Interrupted,
    InvalidRequest,
    ModelNotFound,
    NotAvailable,
    NotPermitted,
    Overloaded,
    ServerFault,
    ServerTooOld,
    TimedOut,
    Unreachable,
)
from dormouse_api.client.retry import RetryPolicy
from dormouse_api.client.settings import Tls
from dormouse_api.client.sync import Client

__all__ = [
    "AsyncClient",
    "Cancelled",
    "Client",
    "ClientError",
    "Interrupted",
    "InvalidRequest",
    "ModelNotFound",
    "NotAvailable",
    "NotPermitted",
    "Overloaded",
    "RetryPolicy",
    "ServerFault",
    "ServerTooOld",
    "TimedOut",
    "Tls",
    "Unreachable",
]
