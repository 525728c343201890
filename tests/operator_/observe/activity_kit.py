"""Time that tests tell, and gateways to listen to."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from dormouse_operator.model import Key
from dormouse_operator.observe.activity import ActivityWatch

TINY, OTHER = Key("team", "tiny"), Key("team", "other")


class Clock:
    """Time that is told, and the sleep that belongs to it: everybody who sleeps wakes when told."""

    def __init__(self):
        self.now_s = 1000.0
        self.naps = []
        self._wake = asyncio.Event()

    def __call__(self):
        return self.now_s

    async def sleep(self, seconds):
        self.naps.append(seconds)
        await self._wake.wait()

    async def pass_by(self):
        """Wake everybody who sleeps, and let them act."""
        self._wake.set()
        self._wake = asyncio.Event()
        await calm()


async def calm():
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def listening(gateways, book, clock):
    running = asyncio.create_task(ActivityWatch(gateways, book, sleep=clock.sleep).run())
    await calm()
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await calm()
