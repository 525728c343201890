"""The gateways' door of a stand-in worker: many calls over one stream."""

# ruff: noqa: N802  the methods are those of the .proto file
from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import grpc

from dormouse_api.names import METADATA_RELAY, Role
from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import relay_pb2 as wire
from dormouse_api.v1 import relay_pb2_grpc as relay_rpc

from .generating import generate
from .worker import Worker


class Relay(relay_rpc.RelayServicer):
    """`dormouse.v1.Relay`."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def Carry(self, request_iterator: Any, context: Any) -> Iterator[wire.CarryResponse]:
        if self.worker.role_of(context) is not Role.GATEWAY:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "a gateway's ticket is needed")
        context.send_initial_metadata(((METADATA_RELAY, "1"),))
        outbox: queue.SimpleQueue[wire.CarriedPart | None] = queue.SimpleQueue()
        cancelled: dict[int, threading.Event] = {}
        context.add_callback(lambda: outbox.put(None))
        threading.Thread(target=self._read, args=(request_iterator, outbox, cancelled), daemon=True).start()
        while (part := outbox.get()) is not None:
            yield wire.CarryResponse(parts=[part])

    def _read(self, requests: Any, outbox: Any, cancelled: dict[int, threading.Event]) -> None:
        with suppress(grpc.RpcError, ValueError):  # the gateway has left
            for request in requests:
                for call in request.begin:
                    cancelled[call.call] = threading.Event()
                    arguments = (call, outbox, cancelled[call.call])
                    threading.Thread(target=self._carry, args=arguments, daemon=True).start()
                for number in request.cancel:
                    cancelled[number].set()
        outbox.put(None)

    def _carry(self, call: wire.CarriedCall, outbox: Any, cancelled: threading.Event) -> None:
        end = wire.CarriedStatus()
        request = pb.GenerateRequest.FromString(call.request)
        left: list[Callable[[], None]] = []
        try:
            for message in generate(self.worker, request, Role.GATEWAY, left.append):
                if cancelled.is_set():
                    return
                outbox.put(wire.CarriedPart(call=call.call, message=message.SerializeToString()))
        except CallError as error:
            end = wire.CarriedStatus(code=error.code.value[0], message=error.message)
        finally:
            for free in left:
                free()
        outbox.put(wire.CarriedPart(call=call.call, end=end))
