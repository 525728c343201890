"""The one place where gRPC's errors become a sentence for a person."""

from __future__ import annotations

import grpc

from dormouse_api.status import retry_after_s


class CommandFailed(Exception):
    """The command can not go on; the message is all that the user sees."""


def explain(error: grpc.RpcError, *, address: str) -> CommandFailed:
    """Return what to tell: the server's own words, or, if none answered, where nobody did."""
    call: grpc.Call = error  # type: ignore[assignment]  # every error that a call raises is a call, too
    wait_s = retry_after_s(error)
    if call.code() is grpc.StatusCode.UNAVAILABLE and wait_s is None:
        return CommandFailed(f"nobody answers at {address}: {call.details()}")
    hint = f" (try again in {wait_s:g} s)" if wait_s is not None else ""
    return CommandFailed(f"{call.code().name}: {call.details()}{hint}")
