"""Guards services by the role that a caller proves (see `tickets`): one who proves none is a client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import grpc
from grpc import aio

from dormouse_api.names import Role
from dormouse_api.tickets import MetadataPairs


class Proofs(Protocol):
    """Tells what callers prove."""

    def role_of(self, metadata: MetadataPairs | None) -> Role:
        """Return the role that the metadata proves, CLIENT if none."""
        ...

    def complaint(self, metadata: MetadataPairs | None) -> str:
        """Return why the metadata proves no role although it tries to, else ""."""
        ...


Continuation = Callable[[Any], Awaitable["grpc.RpcMethodHandler[Any, Any]"]]


class RequireRole(aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Refuses calls of guarded services with PERMISSION_DENIED unless the caller proves the role they need.

    Stands on every port, so that a control service that is served on the wrong one is still guarded.
    """

    def __init__(self, proofs: Proofs, required: Mapping[str, Role]) -> None:
        """Take who knows what callers prove and, by full service name, the role that it needs."""
        self._proofs = proofs
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
        metadata = handler_call_details.invocation_metadata
        role = self._proofs.role_of(metadata)
        if role is needed:
            return handler
        why = self._proofs.complaint(metadata)
        words = f"{service} needs the role {needed}; this caller has the role {role}"
        return _refuse(handler, f"{words}: {why}" if why else words)


def _refuse(handler: grpc.RpcMethodHandler[Any, Any], message: str) -> grpc.RpcMethodHandler[Any, Any]:
    """Return a handler of the same shape that refuses every call."""

    async def refuse(_request: Any, context: aio.ServicerContext[Any, Any]) -> Any:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, message)

    if handler.request_streaming and handler.response_streaming:  # refused before the caller sends anything
        return grpc.stream_stream_rpc_method_handler(refuse)
    if handler.response_streaming:  # a coroutine may serve a stream too: it would write to the context
        return grpc.unary_stream_rpc_method_handler(refuse)
    return grpc.unary_unary_rpc_method_handler(refuse)
