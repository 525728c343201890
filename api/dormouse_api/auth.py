"""Who a gRPC caller is: a random token per role, sent as metadata, kept by servers as its SHA-256 only.

Stands until mutual TLS proves identities. Servers compare in constant time; a caller without a token, or with a
wrong one, is a client.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

import grpc
from grpc import aio

from dormouse_api.names import METADATA_ROLE_TOKEN, Role

MetadataPairs = Iterable[tuple[str, str | bytes]]


def token_digest(token: str) -> str:
    """Return the hexadecimal SHA-256 under which servers know a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def role_metadata(token: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata with which a caller proves its role."""
    return ((METADATA_ROLE_TOKEN, token),)


class RoleTokens:
    """Knows the SHA-256 of each role's token and tells which role a call's metadata proves."""

    def __init__(self, digests: Mapping[Role, str]) -> None:
        """Take role → hexadecimal SHA-256; a role without a digest can not be proved here."""
        self._digests = {role: digest.lower() for role, digest in digests.items() if digest}

    def __repr__(self) -> str:
        """Show the roles, never the digests."""
        return f"RoleTokens({', '.join(sorted(self._digests))})"

    def role_of(self, metadata: MetadataPairs | None) -> Role:
        """Return the role that the metadata proves, CLIENT if none. Looks at every digest, whatever matches."""
        tokens = [value for key, value in metadata or () if key == METADATA_ROLE_TOKEN]
        if len(tokens) != 1:
            return Role.CLIENT
        given = token_digest(tokens[0] if isinstance(tokens[0], str) else tokens[0].decode("latin-1"))
        proved = [role for role, digest in self._digests.items() if hmac.compare_digest(given, digest)]
        return proved[0] if proved else Role.CLIENT


class HandlerCallDetails(Protocol):
    """The part of gRPC's call details that is read here."""

    method: str
    invocation_metadata: MetadataPairs


Continuation = Callable[[Any], Awaitable["grpc.RpcMethodHandler[Any, Any]"]]


class RequireRole(aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Refuses calls of guarded services with PERMISSION_DENIED unless the caller proves the role they need.

    Stands on every port, so that a control service that is served on the wrong one is still guarded.
    """

    def __init__(self, tokens: RoleTokens, required: Mapping[str, Role]) -> None:
        """Take the known tokens and, by full service name, the role that it needs."""
        self._tokens = tokens
        self._required = dict(required)

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: Any
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Pass the call on, or answer PERMISSION_DENIED naming the role that is needed."""
        service = handler_call_details.method.strip("/").rpartition("/")[0]
        handler = await continuation(handler_call_details)
        needed = self._required.get(service)
        if needed is None or handler is None:
            return handler
        role = self._tokens.role_of(handler_call_details.invocation_metadata)
        if role is needed:
            return handler
        return _refuse(handler, f"{service} needs the role {needed}; this caller has the role {role}")


def _refuse(handler: grpc.RpcMethodHandler[Any, Any], message: str) -> grpc.RpcMethodHandler[Any, Any]:
    """Return a handler of the same shape that refuses every call."""

    async def refuse(_request: Any, context: aio.ServicerContext[Any, Any]) -> Any:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, message)

    if handler.request_streaming and handler.response_streaming:  # refused before the caller sends anything
        return grpc.stream_stream_rpc_method_handler(refuse)
    if handler.response_streaming:  # a coroutine may serve a stream too: it would write to the context
        return grpc.unary_stream_rpc_method_handler(refuse)
    return grpc.unary_unary_rpc_method_handler(refuse)
