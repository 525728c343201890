"""Two workers for prompts and two that decode, beside four that do both: the gaps between tokens while prompts come.

Streams with short prompts run all the time; long prompts come one after the other at a rate, each answered shortly. The
gap between two messages of a stream is what its reader waits. Every worker has one thread, and two share a core: with
roles those of one role do, beside them the same two.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from grpc import aio
from rich.console import Console

from bench.client import TIMEOUT_S, to_message
from bench.front_door import NAME, open_door
from bench.models import SHAPES, ensure_model
from bench.options import Options, main
from bench.results import RatioAtLeast, RatioAtMost, Row
from bench.worker import ready_worker
from bench.workload import FIRST_ID, Request
from dormouse_api.limits import channel_options
from dormouse_api.names import DECODE, PREFILL
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc

MODEL = "small"
ROLES = (PREFILL, PREFILL, DECODE, DECODE)
NUM_STREAMS, STREAM_TOKENS = 8, 300
NUM_LONG, LONG_PROMPT, LONG_TOKENS, LONG_EVERY_S = 16, 1500, 16, 1.0


@dataclass(frozen=True, slots=True)
class Lap:
    """What one run of the load brought."""

    gaps_s: list[float]  # of the streams with short prompts
    tokens_per_s: float  # of all prompts and answers

    @property
    def p99_ms(self) -> float:
        """Return the gap that one in a hundred exceeds."""
        return 1e3 * sorted(self.gaps_s)[len(self.gaps_s) * 99 // 100]


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows. Raises RuntimeError where answers are not as long as asked for."""
    laps = {name: _laps(roles, options, console) for name, roles in (("roles", ROLES), ("plain", ("",) * len(ROLES)))}
    (ours, peers), what = laps.values(), f"2 + 2 workers beside 4 plain ones, {MODEL} bf16, prompts of {LONG_PROMPT}"
    p99_ms, peer_ms = (median(lap.p99_ms for lap in each) for each in (ours, peers))
    speed, peer_speed = (median(lap.tokens_per_s for lap in each) for each in (ours, peers))
    return [
        Row(f"decode's ITL p99, {what}", p99_ms, "ms", peer_ms, RatioAtMost(0.5)),
        Row(f"tokens of prompts and answers, {what}", speed, "tokens/s", peer_speed, RatioAtLeast(0.95)),
    ]


def _laps(roles: Sequence[str], options: Options, console: Console) -> list[Lap]:
    model, laps = ensure_model(MODEL, "bf16"), list[Lap]()
    with ExitStack() as stack:
        stores = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp")))
        places = []
        for number, role in enumerate(roles):
            store = ("--kv-store-dir", str(stores / str(number)), "--kv-store-size", "2Gi")
            with _core(number * 2 // len(roles)):
                flags = ("--threads", "1", *store)
                worker = stack.enter_context(ready_worker(model, flags=flags, pod_uid=f"pod-{number}"))
            places.append(f"{worker.port}/pod-{number}/{role}")
        door = stack.enter_context(open_door(model.name, *places))
        for rep in range(options.reps + 1):
            laps.append(asyncio.run(_lap(door.port, rep)))
            console.print(f"  {roles[0] or 'plain'}: {laps[-1].p99_ms:.0f} ms, {laps[-1].tokens_per_s:.0f} tokens/s")
    return laps[1:]


@contextmanager
def _core(number: int) -> Iterator[None]:
    """Keep what is started meanwhile on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cores)[number % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


async def _lap(port: int, rep: int) -> Lap:
    async with aio.insecure_channel(f"127.0.0.1:{port}", options=channel_options()) as channel:
        stub: rpc.InferenceAsyncStub = rpc.InferenceStub(channel)
        begun_s = time.monotonic()
        streams = [_times(stub, _message(f"stream {rep} {number}", 16, STREAM_TOKENS)) for number in range(NUM_STREAMS)]
        long = [
            _times(stub, _message(f"long {rep} {number}", LONG_PROMPT, LONG_TOKENS), after_s=number * LONG_EVERY_S)
            for number in range(NUM_LONG)
        ]
        told = await asyncio.gather(*streams, *long)
        seconds = time.monotonic() - begun_s
    gaps_s = [after - before for times in told[:NUM_STREAMS] for before, after in pairwise(times)]
    num_tokens = NUM_STREAMS * (16 + STREAM_TOKENS) + NUM_LONG * (LONG_PROMPT + LONG_TOKENS)
    return Lap(gaps_s, num_tokens / seconds)


async def _times(stub: rpc.InferenceAsyncStub, message: pb.GenerateRequest, after_s: float = 0.0) -> list[float]:
    """Return when each message with tokens came."""
    await asyncio.sleep(after_s)
    times_s, count = [], 0
    async for response in stub.Generate(message, timeout=TIMEOUT_S):
        if response.token_ids:
            times_s.append(time.monotonic())
            count += len(response.token_ids)
    if count != message.sampling_params.max_tokens:
        raise RuntimeError(f"{count} tokens came of {message.sampling_params.max_tokens}")
    return times_s


def _message(name: str, num_prompt: int, max_tokens: int) -> pb.GenerateRequest:
    """Return a request whose prompt no other one begins like."""
    rng, vocab_size = random.Random(name), SHAPES[MODEL].vocab_size
    prompt = [rng.randrange(FIRST_ID, vocab_size) for _ in range(num_prompt)]
    return to_message(Request(name, prompt, max_tokens), model=f"default/{NAME}")


if __name__ == "__main__":
    main("roles", __doc__, measure)
