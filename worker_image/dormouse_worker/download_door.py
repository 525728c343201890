"""How far a download is, for the operator: GetStatus at the port where the worker will answer. Imports no torch.

A thread with a loop of its own, as the download blocks. What goes wrong here costs the figures and never the download.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc
from grpc import aio

from dormouse_api.auth import RequireRole
from dormouse_api.limits import server_options
from dormouse_api.names import CONTROL_SERVICE, Role
from dormouse_api.tickets import TicketCheck, public_check
from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_worker.front.api.listening import listen
from dormouse_worker.front.certificate import Certificate

_MAX_OPEN_CALLS = 16
_HOST = "[::]"


def _service(pod_uid: str, num_bytes_here: Callable[[], int], total_bytes: int) -> grpc.GenericRpcHandler[Any, Any]:
    """Return the control service as far as it is there: GetStatus. Who calls another method hears UNIMPLEMENTED."""

    async def get_status(_request: pb.GetStatusRequest, _context: aio.ServicerContext[Any, Any]) -> pb.WorkerStatus:
        download = pb.Download(done_bytes=num_bytes_here(), total_bytes=total_bytes)
        return pb.WorkerStatus(state=pb.WORKER_STATE_STARTING, pod_uid=pod_uid, download=download)

    handler = grpc.unary_unary_rpc_method_handler(
        get_status,
        request_deserializer=pb.GetStatusRequest.FromString,
        response_serializer=pb.WorkerStatus.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(CONTROL_SERVICE, {"GetStatus": handler})


@contextmanager
def telling(
    port: int,
    environ: Mapping[str, str],
    num_bytes_here: Callable[[], int],
    total_bytes: int,
    *,
    say: Callable[[str], object],
) -> Iterator[None]:
    """Tell the operator of the worker's variables, until the block ends. Where that cannot be, say why and go on.

    Port 0 is any free one.
    """
    opened: Future[Callable[[], object]] = Future()

    async def serve() -> None:
        ended = asyncio.Event()
        try:
            server = await _open(port, environ, num_bytes_here, total_bytes, say)
        except Exception as error:  # noqa: BLE001  # see the module
            say(f"nobody is told how far it is: {error}")
            opened.set_result(ended.set)
            return
        opened.set_result(partial(asyncio.get_running_loop().call_soon_threadsafe, ended.set))
        await ended.wait()
        await server.stop(0)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="progress", daemon=True)
    thread.start()
    end = opened.result()
    try:
        yield
    finally:
        end()
        thread.join()


async def _open(
    port: int,
    environ: Mapping[str, str],
    num_bytes_here: Callable[[], int],
    total_bytes: int,
    say: Callable[[str], object],
) -> aio.Server:
    """Return the server. Raises BadKey, TlsError, RuntimeError."""
    uid, key = environ["DORMOUSE_POD_UID"], environ["DORMOUSE_OPERATOR_KEY"]
    proofs = TicketCheck([uid], {Role.OPERATOR: [public_check(key)]})
    certificate = Certificate(environ.get("DORMOUSE_MUTUAL_TLS_DIR", ""))
    guards = [RequireRole(proofs, {CONTROL_SERVICE: Role.OPERATOR}), *certificate.guards(proofs)]
    server = aio.server(interceptors=guards, options=server_options(), maximum_concurrent_rpcs=_MAX_OPEN_CALLS)
    server.add_generic_rpc_handlers((_service(uid, num_bytes_here, total_bytes),))
    bound = listen(partial(certificate.add_port, server), _HOST, port, "--control-port")
    certificate.follow()
    await server.start()
    say(f"how far it is is told at port {bound}")
    return server
