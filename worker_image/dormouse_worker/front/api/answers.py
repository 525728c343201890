"""The outermost layer of a servicer: our errors become gRPC statuses here and nowhere else."""

from __future__ import annotations

import functools
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

import grpc
from grpc import aio

from dormouse_api.status import CallError, to_grpc_status
from dormouse_worker.front.requests.parsing import readable

MAX_SENTENCE_BYTES = 1500  # it travels twice, up to three times as long, in trailers of which 8 KiB are taken

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")
Method = Callable[[Any, Any, Any], Awaitable[Answer]]


def answered(method: Method[Answer]) -> Method[Answer]:
    """Let a unary method raise CallError; anything else is INTERNAL, with an id that stands in the log."""

    @functools.wraps(method)
    async def wrapper(self: Any, request: Any, context: aio.ServicerContext[Any, Any]) -> Answer:
        try:
            return await method(self, readable(request), context)
        except CallError as error:
            await abort(context, error)
        except Exception as error:  # noqa: BLE001  nothing that a caller sends may end the process
            await abort(context, unexpected(error))

    return wrapper


async def abort(context: aio.ServicerContext[Any, Any], error: CallError) -> NoReturn:
    """End the call with this error; a sentence that quotes too much of the caller is cut."""
    encoded = error.message.encode(errors="replace")
    if len(encoded) > MAX_SENTENCE_BYTES:
        error = replace(error, message=f"{encoded[:MAX_SENTENCE_BYTES].decode(errors='ignore')}…")
    await context.abort_with_status(to_grpc_status(error))  # type: ignore[attr-defined]  # missing in the stubs
    raise AssertionError("abort raises")


def unexpected(error: Exception) -> CallError:
    """Log an error that nobody foresaw; return what the caller may know of it."""
    error_id = secrets.token_hex(4)
    logger.error("unexpected error", exc_info=error, extra={"fields": {"id": error_id}})
    return CallError(grpc.StatusCode.INTERNAL, f"internal error; look for id={error_id} in the worker's log")
