"""A client of one worker in a process of its own: `python -m bench.client`, see `helpers`. Streams over gRPC."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import uvloop
from grpc import aio

from bench.helpers import answer_lines
from bench.replies import Reply
from bench.workload import Request
from dormouse_api.limits import channel_options
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc

TIMEOUT_S = 900.0


def to_message(request: Request, stream_interval: int = 1) -> pb.GenerateRequest:
    """Return the message: greedy, exactly `max_tokens` tokens."""
    params = pb.SamplingParams(temperature=0, max_tokens=request.max_tokens, ignore_eos=True)
    prompt = pb.TokenIds(ids=request.prompt)
    return pb.GenerateRequest(token_ids=prompt, sampling_params=params, stream_interval=stream_interval)


async def stream(stub: rpc.InferenceAsyncStub, message: pb.GenerateRequest) -> Reply:
    """Return one request's reply. Raises aio.AioRpcError."""
    tokens: list[int] = []
    times_s: list[float] = []
    usage = pb.Usage()
    submitted_s = time.monotonic()
    async for response in stub.Generate(message, timeout=TIMEOUT_S):
        if response.token_ids:
            times_s.append(time.monotonic())
            tokens.extend(response.token_ids)
        if response.finish_reason:
            usage = response.usage
    return Reply(tokens, submitted_s, times_s[0], times_s[-1], len(times_s), usage.prompt_tokens, usage.cached_tokens)


async def stream_all(port: int, requests: Sequence[Request], stream_interval: int = 1) -> list[Reply]:
    """Submit everything at once and return the replies in order. Raises RuntimeError if tokens are missing."""
    messages = [to_message(request, stream_interval) for request in requests]
    async with aio.insecure_channel(f"127.0.0.1:{port}", options=channel_options()) as channel:
        await channel.channel_ready()
        stub: rpc.InferenceAsyncStub = rpc.InferenceStub(channel)
        replies = await asyncio.gather(*(stream(stub, message) for message in messages))
    for request, reply in zip(requests, replies, strict=True):
        if len(reply.tokens) != request.max_tokens:
            raise RuntimeError(f"request {request.id} got {len(reply.tokens)} tokens of {request.max_tokens}")
    return replies


def main() -> None:
    """Answer jobs until standard input ends."""
    answer_lines(lambda job: uvloop.run(stream_all(job.port, job.requests, job.stream_interval)))


if __name__ == "__main__":
    main()
