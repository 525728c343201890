"""Requests at a fixed rate through a release's gateways, and what became of them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from tests.prober.loads import Load
from tests.prober.probe import Door, Manner, Prober

SCENARIO = "release"


@asynccontextmanager
async def asked_all_the_time(prober: Prober, address: str, load: Load, model: str) -> AsyncIterator[None]:
    """Ask while the context lasts; afterwards every request has ended."""
    async with AsyncExitStack() as stack:
        doors = [Door(f"service-{index}", address) for index in range(4)]
        for door in doors:
            stack.push_async_callback(door.close)
        stop = asyncio.Event()
        asking = prober.send(
            load, scenario=SCENARIO, model=model, manner=Manner(doors), rng=random.Random(20), stop=stop
        )
        task = asyncio.create_task(asking)
        try:
            await prober.until_running(SCENARIO, 1)
            yield
        finally:
            stop.set()
            await task
            await prober.settle()


def failures(prober: Prober) -> Counter[str]:
    """Return how many requests did not get their answer, or not the right one, by what became of them."""
    bad = (record for record in prober.records if record.finding is None or not record.finding.is_ok)
    return Counter(f"{record.finding and record.finding.verdict}: {record.code} {record.message}" for record in bad)
