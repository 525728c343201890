"""Asks the gateway, and remembers what a client sees."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from grpc import aio

from bench.fleet.cluster import FLEET
from bench.ladder.findings import Answer
from bench.ladder.gateway_process import HOST, PORT
from dormouse_api.limits import channel_options
from dormouse_api.names import METADATA_HOLD_SECONDS, METADATA_START
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc

TIMEOUT_S = 120.0
PROMPT = tuple(range(3, 131))


class Client:
    """One client over one connection."""

    def __init__(self, channel: aio.Channel) -> None:
        """Take the connection."""
        self._stub: Any = rpc.InferenceStub(channel)
        self.num_asked = 0

    async def ask(self, model: str, request_id: str = "", *, max_tokens: int = 1) -> Answer:
        """Ask a deployment of the fleet and take the whole answer; an error is an answer, too."""
        message = pb.GenerateRequest(
            model=f"{FLEET}/{model}",
            token_ids=pb.TokenIds(ids=PROMPT),
            sampling_params=pb.SamplingParams(max_tokens=max_tokens),
            request_id=request_id,
        )
        self.num_asked += 1
        asked_s, told_s, first_s = time.monotonic(), 0.0, 0.0
        call = self._stub.Generate(message, timeout=TIMEOUT_S)
        try:
            await call.initial_metadata()
            told_s = time.monotonic()
            async for _ in call:
                first_s = first_s or time.monotonic()
        except aio.AioRpcError as error:
            return Answer(asked_s, told_s, first_s, error=f"{error.code().name}: {error.details()}")
        said = dict(await call.trailing_metadata() or ())
        return Answer(asked_s, told_s, first_s, str(said[METADATA_START]), float(said[METADATA_HOLD_SECONDS]))

    async def ask_many(self, model: str, count: int, spacing_s: float) -> dict[str, Answer]:
        """Ask so often, evenly, however long the answers take; return the answers by request id, in order."""
        begin_s = time.monotonic()
        names = [f"{model}-{number:06d}" for number in range(count)]

        async def ask_at(number: int, name: str) -> Answer:
            await asyncio.sleep(max(0.0, begin_s + number * spacing_s - time.monotonic()))
            return await self.ask(model, name)

        answers = await asyncio.gather(*(ask_at(number, name) for number, name in enumerate(names)))
        return dict(zip(names, answers, strict=True))


@asynccontextmanager
async def connected() -> AsyncIterator[Client]:
    """A client of the gateway. Raises TimeoutError if it does not answer."""
    async with aio.insecure_channel(f"{HOST}:{PORT}", options=channel_options()) as channel:
        async with asyncio.timeout(TIMEOUT_S):
            await channel.channel_ready()
        yield Client(channel)
