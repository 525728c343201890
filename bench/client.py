"""A client of a worker or gateway as a process: `python -m bench.client`, see `helpers`. Streams over gRPC."""

from __future__ import annotations

import asyncio
import time

import uvloop
from grpc import aio

from bench.helpers import Job, answer_lines
from bench.replies import Reply
from bench.workload import Request
from dormouse_api.limits import channel_options
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc

TIMEOUT_S = 900.0


def to_message(request: Request, stream_interval: int = 1, model: str = "") -> pb.GenerateRequest:
    """Return the message: greedy, exactly `max_tokens` tokens."""
    params = pb.SamplingParams(temperature=0, max_tokens=request.max_tokens, ignore_eos=True)
    prompt = pb.TokenIds(ids=request.prompt)
    return pb.GenerateRequest(model=model, token_ids=prompt, sampling_params=params, stream_interval=stream_interval)


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


async def stream_all(job: Job) -> list[Reply]:
    """Submit everything and return the replies in order. Raises RuntimeError if tokens are missing."""
    messages = [to_message(request, job.stream_interval, job.model) for request in job.requests]
    async with aio.insecure_channel(f"127.0.0.1:{job.port}", options=channel_options()) as channel:
        await channel.channel_ready()
        stub: rpc.InferenceAsyncStub = rpc.InferenceStub(channel)
        begin_s, pause_s = time.monotonic(), 1 / job.rate_per_s if job.rate_per_s else 0.0
        replies = await asyncio.gather(
            *(_stream_at(begin_s + number * pause_s, stub, message) for number, message in enumerate(messages))
        )
    for request, reply in zip(job.requests, replies, strict=True):
        if len(reply.tokens) != request.max_tokens:
            raise RuntimeError(f"request {request.id} got {len(reply.tokens)} tokens of {request.max_tokens}")
    return replies


async def _stream_at(at_s: float, stub: rpc.InferenceAsyncStub, message: pb.GenerateRequest) -> Reply:
    """Submit at this moment, or at once if it has passed."""
    await asyncio.sleep(max(0.0, at_s - time.monotonic()))
    return await stream(stub, message)


def main() -> None:
    """Answer jobs until standard input ends."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # one loop: gRPC is not made for several
        answer_lines(lambda job: runner.run(stream_all(job)))


if __name__ == "__main__":
    main()
