"""Lets callers in by what their certificate says they are. Stands on ports with mutual TLS, beside `auth.RequireRole`.

A ticket is then a second proof and never the only one: who shows one must carry a certificate of that role.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import grpc
from grpc import aio

from dormouse_api.auth import Continuation, Proofs
from dormouse_api.identity import BadIdentity, Identity, identity_among, refusal
from dormouse_api.names import Role
from dormouse_api.tickets import MetadataPairs

_NAMES = "x509_subject_alternative_name"  # as gRPC calls a peer's names


def peer_identity(auth_context: Mapping[str, Sequence[bytes]]) -> Identity:
    """Return who the peer's certificate says that it is. Raises BadIdentity, also for a peer without any."""
    return identity_among(name.decode("ascii", "replace") for name in auth_context.get(_NAMES, ()))


class RequirePeer(aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Refuses calls with PERMISSION_DENIED that the caller's certificate does not allow (see `identity.refusal`)."""

    def __init__(self, own: Identity, proofs: Proofs) -> None:
        """Take who the server is, and who knows what callers prove beside their certificates."""
        self._own = own
        self._proofs = proofs

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: Any
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Return the handler behind the check: only a call's own context knows the peer."""
        handler: Any = await continuation(handler_call_details)
        if handler is None:  # there is no such method
            return None  # type: ignore[return-value]  # as gRPC wants it
        service = handler_call_details.method.strip("/").rpartition("/")[0]
        metadata = handler_call_details.invocation_metadata
        return _behind(handler, lambda context: self._refusal(service, metadata, context))

    def _refusal(self, service: str, metadata: MetadataPairs | None, context: Any) -> str:
        try:
            caller = peer_identity(context.auth_context())
        except BadIdentity as error:
            return str(error)
        claimed = self._proofs.role_of(metadata)
        if claimed not in {Role.CLIENT, caller.role}:
            return f"a ticket of the role {claimed} was shown by {caller}"
        return refusal(service, caller, self._own)


def _behind(
    handler: grpc.RpcMethodHandler[Any, Any], refusal_of: Callable[[Any], str]
) -> grpc.RpcMethodHandler[Any, Any]:
    """Return a handler of the same shape that asks first."""
    shape = (
        f"{'stream' if handler.request_streaming else 'unary'}_{'stream' if handler.response_streaming else 'unary'}"
    )
    serve = getattr(handler, shape)

    async def check(context: Any) -> None:
        if words := refusal_of(context):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, words)

    async def answer(request: Any, context: Any) -> Any:
        await check(context)
        return await serve(request, context)

    async def stream(request: Any, context: Any) -> None:
        await check(context)
        answers = serve(request, context)
        if not hasattr(answers, "aclose"):  # a coroutine, which writes to the context
            await answers
            return
        async with aclosing(answers):
            async for each in answers:
                await context.write(each)

    make: Any = getattr(grpc, f"{shape}_rpc_method_handler")
    behind: grpc.RpcMethodHandler[Any, Any] = make(
        stream if handler.response_streaming else answer, handler.request_deserializer, handler.response_serializer
    )
    return behind
