"""A worker's side that is carried calls and the gateway's relay to it, over loopback; what generates is made up."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from grpc import aio

from dormouse_api.auth import RequireRole
from dormouse_api.limits import server_options
from dormouse_api.names import RELAY_SERVICE, Role
from dormouse_api.status import CallError, to_grpc_status
from dormouse_api.testing_tickets import GATEWAY_SEED, knows, proof
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import relay_pb2_grpc as rpc
from dormouse_gateway.workers.relay import Relay
from dormouse_worker.front.api.relay import RelayService
from dormouse_worker.front.requests.parsing import readable
from tests.waiting import until


@dataclass
class Speaker:
    """Generates what a test puts into it, for every call alike; remembers calls and their ends."""

    metadata: list = field(default_factory=list)
    remaining_s: list = field(default_factory=list)
    ended: list = field(default_factory=list)  # prompts of calls that ended, however
    number: int = 3  # of messages
    error: Exception | None = None  # after them
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    is_gated: bool = False  # waits for the gate after the first message
    given: Counter = field(default_factory=Counter)  # prompt → messages so far
    text: str = ""

    async def generate(self, request, context):
        request = readable(request)
        self.metadata.append(dict(context.invocation_metadata()))
        self.remaining_s.append(context.time_remaining())
        context.add_done_callback(lambda _: None)
        try:
            for number in range(self.number):
                self.given[request.text] += 1
                yield pb.GenerateResponse(token_ids=[number], text=self.text or request.text)
                if self.is_gated:
                    await self.gate.wait()
            if isinstance(self.error, CallError):
                await context.abort_with_status(to_grpc_status(self.error))
            if self.error:
                raise self.error
        finally:
            self.ended.append(request.text)


@dataclass
class Line:
    """A worker's side that serves, and a relay to it."""

    speaker: Speaker
    service: RelayService
    server: aio.Server
    relay: Relay
    port: int

    def call(self, text="hello", *, timeout_s=30.0, metadata=()):
        body = pb.GenerateRequest(text=text).SerializeToString()
        return self.relay.call(body, timeout_s=timeout_s, metadata=metadata)


@asynccontextmanager
async def running_line(*, seed=GATEWAY_SEED, max_open_calls=100, **options):
    speaker = Speaker(**options)
    service = RelayService(speaker.generate, max_open_calls=max_open_calls)
    guard = RequireRole(knows(Role.GATEWAY), {RELAY_SERVICE: Role.GATEWAY})
    server = aio.server(interceptors=[guard], options=server_options())
    rpc.add_RelayServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        relay = Relay(channel, lambda: proof(Role.GATEWAY, seed=seed))
        relay.open_soon()
        try:
            yield Line(speaker, service, server, relay, port)
        finally:
            await relay.aclose()
            await server.stop(None)


@pytest.fixture
async def line():
    async with running_line() as made:
        await until(lambda: made.relay.is_open)
        yield made


async def read_all(call):
    messages = []
    while (message := await call.read()) is not aio.EOF:
        messages.append(pb.GenerateResponse.FromString(message))
    return messages
