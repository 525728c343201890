"""What keys do to each other: limits over four gateways at ten times their rate, and a greedy neighbour.

    limits    four gateways, an operator that counts, a key with 60 requests, then 6,000 tokens, a minute; ten times as
              much arrives at random gateways for 75 seconds. Counted is the fullest minute
    greedy    a tiny model on a real worker behind a gateway: one key sends a request after the other, alone and while
              another key keeps 64 under way. Counted is the time to its first token

Gateways and operator are as they are, over sockets, in one process with the clients; Kubernetes is in memory. Rows go
beside others in `platform.json`.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import grpc
import uvloop
from grpc import aio
from rich.console import Console

from bench.models import ensure_model
from bench.options import Options, main
from bench.results import AtMost, RatioAtMost, Row
from bench.worker import ready_worker
from dormouse_api.testing_tickets import GATEWAY_SEED, POD_UID, book_to_gateways
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from dormouse_gateway.seeds import Seeds
from dormouse_gateway.server import Gateway
from dormouse_gateway.settings import Settings
from dormouse_gateway.testing.slices import ControlledKube
from dormouse_gateway.testing.workers import NAMESPACE, FakeWorker, infd, pod
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, INFERENCE_KEYS, PODS
from dormouse_operator.limits.counter import LimitCounter
from dormouse_operator.limits.streams import LimitStreams
from dormouse_operator.observe.gateways import GrpcGateways

NUM_GATEWAYS, SECONDS, TIMES = 4, 75.0, 10
REQUESTS_PER_MINUTE, TOKENS_PER_MINUTE, TOKENS_PER_REQUEST = 60, 6000, 20
MODEL, NUM_GREEDY, BATCH, NUM_MODEST = "tiny", 64, 8, 100
ANSWER_TOKENS, PROMPT = 32, "Once upon a time there was a dormouse who slept. " * 4
POLL_S, THINK_S = 0.02, 0.05


class Here(GrpcGateways):
    """Gateways of this process, as the operator finds them."""

    def __init__(self, ports: Sequence[int]) -> None:
        super().__init__("nobody.invalid:1", book_to_gateways(), clock=time.monotonic)
        self._found = frozenset(f"127.0.0.1:{port}" for port in ports)

    async def find(self) -> frozenset[str]:
        """See Gateways."""
        return self._found


@asynccontextmanager
async def running_gateway(kube: ControlledKube) -> AsyncIterator[tuple[Gateway, rpc.InferenceStub, int]]:
    """Give a gateway that serves, a client of it, and its control port."""
    settings = Settings(
        host="127.0.0.1", port=0, control_port=0, metrics_port=0, http_port=0, lame_duck_s=0, pod_ips=("127.0.0.1",)
    )
    gateway, stop = Gateway(settings, Seeds((GATEWAY_SEED,)), kube), asyncio.Event()
    ports = await gateway.start()
    running = asyncio.create_task(gateway.run(stop))
    try:
        async with aio.insecure_channel(f"127.0.0.1:{ports.inference}") as channel:
            await until(lambda: _num_heard(gateway) > 0)
            yield gateway, rpc.InferenceStub(channel), ports.control
    finally:
        stop.set()
        await running


def _num_heard(gateway: Gateway) -> int:
    """Return how many workers tell the gateway their load."""
    found = [gateway.router.activity.activity(one.key) for one in gateway.router.catalogue.deployments()]
    return sum(each.awake_workers for each in found if each)


async def until(holds: Any) -> None:
    """Wait for what tells nobody."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110  # nobody tells of it
            await asyncio.sleep(POLL_S)


def kubernetes(port: int, batch: int, **keys: dict[str, int]) -> ControlledKube:
    """Return a cluster with one worker, and InferenceKeys."""
    kube = ControlledKube()
    kube.put(INFERENCE_DEPLOYMENTS, infd("m", model=ensure_model(MODEL).name, engine={"maxNumSeqs": batch}))
    kube.put(PODS, pod("m-0", "m", f"127.0.0.1:{port}", uid=POD_UID))
    for name, limits in keys.items():
        spec = {"sha256": hashlib.sha256(name.encode()).hexdigest(), **limits}
        kube.put(INFERENCE_KEYS, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
    return kube


def call(stub: Any, key: str, **params: Any) -> Any:
    """Begin a request of a key."""
    request = pb.GenerateRequest(model=f"{NAMESPACE}/m", text=PROMPT, sampling_params=pb.SamplingParams(**params))
    return stub.Generate(request, metadata=aio.Metadata(("authorization", f"Bearer {key}")), timeout=300)


class Accountant(FakeWorker):
    """A worker whose answers take a number of tokens, evenly spread around a mean; it says so in their usage."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self.taken: list[tuple[float, int]] = []  # when each answer began, and its tokens

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:  # noqa: N802
        """Answer at once."""
        del context
        tokens = self._rng.randint(1, 2 * TOKENS_PER_REQUEST - 1)
        self.taken.append((time.monotonic(), tokens))
        yield pb.GenerateResponse(token_ids=[1], completion_tokens=1, request_id=request.request_id)
        await asyncio.sleep(self._rng.uniform(0, 0.5))
        usage = pb.Usage(prompt_tokens=0, completion_tokens=tokens)
        yield pb.GenerateResponse(finish_reason=pb.FINISH_REASON_STOP, usage=usage)


def fullest_minute(taken: Sequence[tuple[float, int]]) -> int:
    """Return the most that any sixty seconds hold. Pure."""
    return max(sum(amount for at_s, amount in taken[n:] if at_s < begun_s + 60) for n, (begun_s, _) in enumerate(taken))


async def limits(seconds: float, limit: dict[str, int], rate_per_s: float) -> list[tuple[float, int]]:
    """Return what was let through four gateways: when, and how many tokens it took."""
    rng = random.Random(0)  # the same arrivals each time
    worker = Accountant(rng)
    await worker.start()
    kube = kubernetes(worker.port, 1000, a=limit)
    async with AsyncExitStack() as stack:
        doors = [await stack.enter_async_context(running_gateway(kube)) for _ in range(NUM_GATEWAYS)]
        counter = LimitCounter(clock=time.monotonic, wall=time.time)
        streams = LimitStreams(Here([port for *_, port in doors]), counter)
        counting = asyncio.create_task(streams.run())
        await until(lambda: counter_is_known(doors))
        tasks, begun_s = [], time.monotonic()
        while time.monotonic() < begun_s + seconds:
            tasks.append(asyncio.create_task(_outcome(rng.choice(doors)[1])))
            await asyncio.sleep(rng.expovariate(rate_per_s))
        await asyncio.gather(*tasks)
        counting.cancel()
    await worker.stop()
    return worker.taken


def counter_is_known(doors: Sequence[tuple[Gateway, Any, int]]) -> bool:
    """Return whether every gateway asks the operator."""
    return all("shared" in repr(gateway.counting) for gateway, *_ in doors)


async def _outcome(stub: Any) -> None:
    with suppress(grpc.RpcError):
        async for _ in call(stub, "a", max_tokens=TOKENS_PER_REQUEST):
            pass


async def greedy(port: int, count: int, keys: tuple[str, str]) -> tuple[list[float], list[float]]:
    """Return the times to the first token of the modest key, alone and beside the greedy one."""
    kube = kubernetes(port, BATCH, modest={}, greedy={})
    async with running_gateway(kube) as (_, stub, _port):
        await _modest(stub, keys[0], count // 5)
        alone = await _modest(stub, keys[0], count)
        flood = [asyncio.create_task(_flood(stub, keys[1])) for _ in range(NUM_GREEDY)]
        await _modest(stub, keys[0], count // 5)
        beside = await _modest(stub, keys[0], count)
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
    return alone, beside


async def _modest(stub: Any, key: str, count: int) -> list[float]:
    times = []
    for number in range(count):
        answer, begun_s = call(stub, key, max_tokens=ANSWER_TOKENS, seed=number), time.perf_counter()
        async for message in answer:
            if message.token_ids:
                times.append(time.perf_counter() - begun_s)
                break
        async for _ in answer:
            pass
        await asyncio.sleep(THINK_S)
    return times


async def _flood(stub: Any, key: str) -> None:
    while True:
        async for _ in call(stub, key, max_tokens=ANSWER_TOKENS, ignore_eos=True):
            pass


def p95_ms(times: Sequence[float]) -> float:
    """Return the 95th percentile in milliseconds. Pure."""
    return sorted(times)[int(len(times) * 0.95)] * 1000


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    seconds, rows = SECONDS * (options.count or 100) / 100, []
    asked = {"requests": REQUESTS_PER_MINUTE, "tokens": TOKENS_PER_MINUTE}
    for what, limit in asked.items():
        each = TOKENS_PER_REQUEST if what == "tokens" else 1
        rate_per_s = TIMES * limit / each / 60
        taken = uvloop.run(limits(seconds, {f"{what}PerMinute": limit}, rate_per_s))
        most = fullest_minute([(at_s, tokens if what == "tokens" else 1) for at_s, tokens in taken])
        console.print(f"  {what}: {most} in the fullest minute of {seconds:.0f} s, {limit} allowed", highlight=False)
        about = f"limits: {limit} {what} a minute over {NUM_GATEWAYS} gateways at {TIMES} x the rate: overshoot"
        rows.append(Row(about, max(0.0, 100 * (most / limit - 1)), "%", goal=AtMost(10)))
        rows.append(Row(f"limits: {what} of the fullest minute", most, f"of {limit}"))
    with ready_worker(ensure_model(MODEL), flags=("--max-num-seqs", str(BATCH))) as worker:
        uvloop.run(greedy(worker.port, 20, ("modest", "greedy")))  # what is slow once is over then
        for keys, goal in ((("modest", "greedy"), RatioAtMost(2)), (("greedy", "greedy"), None)):
            count = (options.count or NUM_MODEST) // (1 if goal else 10)
            alone, beside = uvloop.run(greedy(worker.port, count, keys))
            whose = "another key's" if goal else "the same key's"
            what = f"first token, p95: beside {whose} {NUM_GREEDY} requests under way, and alone"
            rows.append(Row(what, p95_ms(beside), "ms", peer=p95_ms(alone), goal=goal))
            half = what.replace("p95", "median")
            rows.append(Row(half, statistics.median(beside) * 1000, "ms", peer=statistics.median(alone) * 1000))
            console.print(f"  {what}: {rows[-1].ours} and {rows[-1].peer} ms", highlight=False)
    return rows


if __name__ == "__main__":
    main("tenants", __doc__, measure)
