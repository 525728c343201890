"""How our parts end a gRPC call with an error: a code, a sentence, and, where the caller may retry, RetryInfo."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

STATUS_DETAILS = "grpc-status-details-bin"  # trailing metadata: a google.rpc.Status


@dataclass(slots=True, unsafe_hash=True)  # not frozen: context managers write an exception's traceback
class CallError(Exception):
    """A call must end with this status. Raised by servicers, turned into a status at the outermost layer."""

    code: grpc.StatusCode
    message: str
    retry_after_s: float | None = None  # seconds after which a retry makes sense; None = do not

    def __str__(self) -> str:
        """Return the sentence that the caller sees."""
        return self.message


def to_grpc_status(error: CallError) -> grpc.Status:
    """Return the status that `context.abort_with_status` takes, with RetryInfo where a retry makes sense."""
    status = status_pb2.Status(code=code_pb2.Code.Value(error.code.name), message=error.message)
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        packed = any_pb2.Any()
        packed.Pack(error_details_pb2.RetryInfo(retry_delay=delay))
        status.details.append(packed)
    return rpc_status.to_status(status)


def retry_after_s(error: grpc.RpcError) -> float | None:
    """Return the seconds after which the server said that a retry makes sense, None if it said nothing."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # every RpcError that a call raises is a Call too
    for detail in status.details if status else ():
        info = error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            return float(info.retry_delay.ToNanoseconds() / 1e9)
    return None
