"""A worker that keeps the whole worker protocol and computes nothing: what the conformance kit is tried on.

Mutants (tests/conformance/mutants.py) change single lines of these files.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health_pb2_grpc

from dormouse_api.capabilities import Capability
from dormouse_api.v1 import inference_pb2_grpc as rpc
from dormouse_api.v1 import relay_pb2_grpc as relay_rpc
from dormouse_api.v1 import worker_control_pb2_grpc as control_rpc

from .control import Control
from .inference import Health, Inference
from .relay import Relay
from .worker import Worker


def serve(worker: Worker) -> tuple[grpc.Server, int]:
    """Serve the worker at a free port of loopback; return the server and the port."""
    server = grpc.server(ThreadPoolExecutor(32))
    rpc.add_InferenceServicer_to_server(Inference(worker), server)
    control_rpc.add_WorkerControlServicer_to_server(Control(worker), server)
    health_pb2_grpc.add_HealthServicer_to_server(Health(worker), server)
    if Capability.RELAY in worker.claims:
        relay_rpc.add_RelayServicer_to_server(Relay(worker), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    worker.load()
    return server, port


def stop(worker: Worker, server: grpc.Server) -> None:
    with worker.changed:
        worker.is_closed = True
        worker.changed.notify_all()
    server.stop(None).wait()
