"""How our parts end a gRPC call with an error: a code, a sentence, and, where the caller may retry, RetryInfo.

Where programs must tell one error from others of its code, ErrorInfo holds a reason: sentences are for people.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

STATUS_DETAILS = "grpc-status-details-bin"  # trailing metadata: a google.rpc.Status
ERROR_DOMAIN = "inference.dormouse.dev"  # of the reasons in ErrorInfo
CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"  # the prompt, or what shall follow it, is longer than the model
IMAGE_UNKNOWN = "image_unknown"  # an image was named by a digest, and must be sent whole


_Detail = TypeVar("_Detail", error_details_pb2.RetryInfo, error_details_pb2.ErrorInfo)


@dataclass(slots=True, unsafe_hash=True)  # not frozen: context managers write an exception's traceback
class CallError(Exception):
    """A call must end with this status. Raised by servicers, turned into a status at the outermost layer."""

    code: grpc.StatusCode
    message: str
    retry_after_s: float | None = None  # seconds after which a retry makes sense; None = do not
    reason: str = ""  # in lower case; ErrorInfo's on the wire is the same in upper case

    def __str__(self) -> str:
        """Return the sentence that the caller sees."""
        return self.message


def to_grpc_status(error: CallError) -> grpc.Status:
    """Return the status that `context.abort_with_status` takes, with RetryInfo where a retry makes sense."""
    details = []
    status = status_pb2.Status(code=code_pb2.Code.Value(error.code.name), message=error.message)
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
    if error.reason:
        details.append(_packed(error_details_pb2.ErrorInfo(reason=error.reason.upper(), domain=ERROR_DOMAIN)))
    status.details.extend(details)
    return rpc_status.to_status(status)


def retry_after_s(error: grpc.RpcError) -> float | None:
    """Return the seconds after which the server said that a retry makes sense, None if it said nothing."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # every RpcError that a call raises is a Call too
    return _retry_after_s(status) if status else None


def read_details(code: grpc.StatusCode, message: str, raw: bytes) -> CallError:
    """Return the error that a status says; `raw` is the google.rpc.Status of its trailing metadata."""
    status = status_pb2.Status.FromString(raw)
    return CallError(code, message, _retry_after_s(status), _reason(status))


def _retry_after_s(status: status_pb2.Status) -> float | None:
    delays = (info.retry_delay for info in _details(status, error_details_pb2.RetryInfo))
    return next((float(delay.ToNanoseconds() / 1e9) for delay in delays), None)


def _reason(status: status_pb2.Status) -> str:
    infos = _details(status, error_details_pb2.ErrorInfo)
    return next((str(info.reason).lower() for info in infos if info.domain == ERROR_DOMAIN), "")


def _details(status: status_pb2.Status, kind: type[_Detail]) -> Iterator[_Detail]:
    for packed in status.details:
        detail = kind()
        if packed.Unpack(detail):
            yield detail


def _packed(detail: Any) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed
