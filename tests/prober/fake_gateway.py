"""A gateway in this process that answers as a test says: it can lose, repeat and change tokens, refuse, and hang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc import aio

from dormouse_api.names import METADATA_START
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc

Messages = list[pb.GenerateResponse]
Change = Callable[[Messages], Messages]


def messages_of(tokens: Sequence[int]) -> Messages:
    """Return a right answer, one token per message."""
    made = [pb.GenerateResponse(token_ids=[token], completion_tokens=i + 1) for i, token in enumerate(tokens)]
    made[-1].finish_reason = pb.FINISH_REASON_LENGTH
    return made


class FakeGateway(rpc.InferenceServicer):
    """Answers every request with the reference, or with what `change` makes of it."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)
        self.change: Change = lambda messages: messages
        self.refusals: list[grpc.StatusCode] = []  # of the next requests
        self.is_open = asyncio.Event()  # cleared: requests wait
        self.is_open.set()
        self.arrived: asyncio.Queue[pb.GenerateRequest] = asyncio.Queue()
        self.start = "warm"
        self.last = pb.GenerateRequest()  # that arrived

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:  # noqa: N802
        """See the .proto."""
        self.arrived.put_nowait(request)
        self.last = request
        await self.is_open.wait()
        if self.refusals:
            await context.abort(self.refusals.pop(0), "refused")
        context.set_trailing_metadata(((METADATA_START, self.start),))
        for message in self.change(messages_of(self.tokens[: request.sampling_params.max_tokens])):
            yield message

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve on loopback while the context lasts; yields the address."""
        server = aio.server()
        rpc.add_InferenceServicer_to_server(self, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(0)
