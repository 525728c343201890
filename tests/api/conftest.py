"""A gRPC server that ends calls as it is told, and both Python clients behind the same methods."""

# ruff: noqa: N802  the methods are those of the .proto file
from __future__ import annotations

import asyncio
import random
import threading
from concurrent import futures

import grpc
import pytest

from dormouse_api import client as api
from dormouse_api.status import CallError, to_grpc_status
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc


class Server(rpc.InferenceServicer):
    """Ends calls with the errors it is told, one after the other; then answers."""

    def __init__(self):
        self.errors: list[CallError] = []
        self.break_after_first: CallError | None = None
        self.metadata: list[dict[str, str]] = []
        self.calls = 0
        self.ended = threading.Event()
        self.stalls = False

    def note(self, context):
        self.calls += 1
        self.metadata.append(dict(context.invocation_metadata()))
        if self.errors:
            context.abort_with_status(to_grpc_status(self.errors.pop(0)))

    def Generate(self, request, context):
        self.note(context)
        context.add_callback(self.ended.set)
        yield pb.GenerateResponse(text=request.text or request.chat.messages[-1].content)
        if self.break_after_first:
            context.abort_with_status(to_grpc_status(self.break_after_first))
        if self.stalls:
            self.ended.wait(30)
        yield pb.GenerateResponse(text="!", finish_reason=pb.FINISH_REASON_STOP)

    def Tokenize(self, request, context):
        self.note(context)
        return pb.TokenizeResponse(token_ids=[len(request.text)])

    def Detokenize(self, request, context):
        self.note(context)
        return pb.DetokenizeResponse(text=str(list(request.token_ids)))

    def GetModel(self, request, context):
        self.note(context)
        return pb.GetModelResponse(name=request.model)


@pytest.fixture
def server():
    servicer = Server()
    grpc_server = grpc.server(futures.ThreadPoolExecutor(4))
    rpc.add_InferenceServicer_to_server(servicer, grpc_server)
    servicer.address = f"127.0.0.1:{grpc_server.add_insecure_port('127.0.0.1:0')}"
    grpc_server.start()
    yield servicer
    servicer.ended.set()
    grpc_server.stop(None).wait()


class Sync:
    """The client for threads, as the cases use it."""

    def __init__(self, address, **settings):
        self.slept = []
        self.client = api.Client(address, sleep=self.slept.append, rng=random.Random(0), **settings)

    def texts(self, *args, **more):
        return list(self.client.generate_text("tiny", *args, **more))

    def chat(self, messages):
        return list(self.client.chat("tiny", messages))

    def one(self, method, *args, **more):
        return getattr(self.client, method)(*args, **more)

    def close(self):
        self.client.close()


class Async:
    """The client for asyncio behind the same methods."""

    def __init__(self, address, **settings):
        self.slept = []
        self.loop = asyncio.new_event_loop()
        self.client = self.loop.run_until_complete(self.make(address, settings))

    async def make(self, address, settings):
        return api.AsyncClient(address, sleep=self.sleep, rng=random.Random(0), **settings)

    async def sleep(self, seconds):
        self.slept.append(seconds)

    async def gather(self, stream):
        return [piece async for piece in stream]

    def texts(self, *args, **more):
        return self.loop.run_until_complete(self.gather(self.client.generate_text("tiny", *args, **more)))

    def chat(self, messages):
        return self.loop.run_until_complete(self.gather(self.client.chat("tiny", messages)))

    def one(self, method, *args, **more):
        return self.loop.run_until_complete(getattr(self.client, method)(*args, **more))

    def close(self):
        self.loop.run_until_complete(self.client.close())
        self.loop.close()


@pytest.fixture(params=[Sync, Async], ids=["sync", "async"])
def kind(request):
    return request.param


@pytest.fixture
def connect(kind, server):
    """Make clients that are closed at the end."""
    made = []

    def make(address=None, **settings):
        made.append(kind(address or server.address, **settings))
        return made[-1]

    yield make
    for client in made:
        client.close()


def asleep(seconds):
    return CallError(grpc.StatusCode.UNAVAILABLE, "tiny is asleep", seconds)
