"""Everything that a call of the clients may raise. The one place where gRPC's errors become ours."""

from __future__ import annotations

import grpc

from dormouse_api.status import retry_after_s


class ClientError(Exception):
    """A call did not work; the text is the server's own words."""

    def __init__(self, message: str, *, code: grpc.StatusCode, retry_after_s: float | None = None) -> None:
        """Take the words, the status code, and after how many seconds the server wants to be asked again."""
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s  # None = the server did not say that a retry makes sense


class InvalidRequest(ClientError):
    """A field is wrong; the message names it, the value and the limit. Another try does not help."""


class ModelNotFound(ClientError):
    """No such model; the message lists those that there are."""


class NotPermitted(ClientError):
    """The API key is missing, unknown, or not for this model."""


class Overloaded(ClientError):
    """A queue is full or a rate is exceeded: ask again later, or less."""


class NotAvailable(ClientError):
    """The model is asleep, starting or draining, and the server says when to ask again."""


class Unreachable(ClientError):
    """Nobody answered: a wrong address, no network, a TLS handshake that failed."""


class TimedOut(ClientError):
    """The call's time limit passed. The server has freed what it held for it."""


class Cancelled(ClientError):
    """The call was cancelled."""


class Interrupted(ClientError):
    """An answer broke off after its first message. It is not asked again by itself: that may give another answer."""


class ServerTooOld(ClientError):
    """The server does not know this call: it is older than the client, or serves something else."""


class ServerFault(ClientError):
    """The server failed; the message holds an id to look for in its log."""


_NAMED: dict[grpc.StatusCode, type[ClientError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.FAILED_PRECONDITION: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: ModelNotFound,
    grpc.StatusCode.UNAUTHENTICATED: NotPermitted,
    grpc.StatusCode.PERMISSION_DENIED: NotPermitted,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.DEADLINE_EXCEEDED: TimedOut,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.UNIMPLEMENTED: ServerTooOld,
}
_BROKEN_OFF = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.ABORTED,
}


def from_rpc(error: grpc.RpcError, *, has_begun: bool = False) -> ClientError:
    """Return our error for gRPC's; `has_begun`: the first message of the answer had come."""
    call: grpc.Call = error  # type: ignore[assignment]  # every error that a call raises is a call, too
    code, words, wait_s = call.code(), call.details() or "", retry_after_s(error)
    return _kind(code, words, wait_s, has_begun=has_begun)(words, code=code, retry_after_s=wait_s)


def _kind(code: grpc.StatusCode, words: str, wait_s: float | None, *, has_begun: bool) -> type[ClientError]:
    if has_begun and code in _BROKEN_OFF:
        return Interrupted
    if code is grpc.StatusCode.UNAVAILABLE:
        return Unreachable if wait_s is None else NotAvailable
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in words:
        return InvalidRequest  # gRPC's own: the message is too large, now and later
    return _NAMED.get(code, ServerFault)
