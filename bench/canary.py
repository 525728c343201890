"""What users see of a canary that begins to fail: errors until two gateways have stopped it.

Fake workers behind real gateways and sockets, Kubernetes in memory, and no operator: each gateway finds out by itself.
Rows go into platform.json.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import Any

import grpc
import uvloop
from rich.console import Console

from bench.options import Options, main
from bench.results import AtMost, Row
from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.testing.slices import ControlledKube
from dormouse_gateway.testing.workers import running_workers
from tests.gateway.conftest import running_house

RATE_PER_S, SECONDS, WEIGHT = 50.0, 20.0, 10
BROKEN = CallError(grpc.StatusCode.INTERNAL, "it fails")


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    seconds = SECONDS * (options.count or 100) / 100
    num_requests = int(RATE_PER_S * seconds)
    failed, share = uvloop.run(_errors(num_requests, seconds))
    allowed = WEIGHT / 100 * num_requests
    console.print(f"  {failed} of {num_requests} requests failed; the canary had {share}", highlight=False)
    what = f"canary of weight {WEIGHT} that fails always, 2 gateways, {RATE_PER_S:g} requests/s for {seconds:g} s"
    return [Row(f"{what}: errors that users saw", float(failed), f"of {num_requests}", goal=AtMost(allowed))]


async def _errors(num_requests: int, seconds: float) -> tuple[int, int]:
    """Return how many requests failed, and how many the canary had."""
    kube = ControlledKube()
    async with AsyncExitStack() as stack:
        standing, canary = await stack.enter_async_context(running_workers(2))
        canary.fail_before = BROKEN
        houses = [await stack.enter_async_context(running_house(kube)) for _ in range(2)]
        await houses[0].add("tiny", [standing])
        await houses[0].add("next", [canary], canary={"of": "tiny", "weight": WEIGHT})
        await houses[1].until(lambda: houses[1].hears("tiny") and houses[1].hears("next"))
        calls = [
            asyncio.create_task(_fails(random.choice(houses), number, seconds / num_requests))
            for number in range(num_requests)
        ]
        return sum(await asyncio.gather(*calls)), len(canary.seen)


async def _fails(house: Any, number: int, interval_s: float) -> bool:
    """Send a request at its time; return whether it failed."""
    await asyncio.sleep(number * interval_s)
    try:
        async for _ in house.stub.Generate(pb.GenerateRequest(model="tiny", text="a"), timeout=30):
            pass
    except grpc.RpcError:
        return True
    return False


if __name__ == "__main__":
    main("canary", __doc__, measure)
