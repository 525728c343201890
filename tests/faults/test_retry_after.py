"""The API server, or what stands before it, answers wrongly. F4 to F8 of the fault matrix, through an HTTP proxy."""

from __future__ import annotations

import asyncio
import itertools

from tests.faults.gate import Answer, Call, Gate, refusal
from tests.faults.world import World

NEVER = 3600  # a resync that does not come: the watch alone has to notice


class Storm:
    """Refuses every call with the same answer and notes when each call came."""

    def __init__(self, gate: Gate, status: int, reason: str, retry_after_s: int | None = None) -> None:
        """Begin."""
        self._answer = (status, reason, retry_after_s)
        self.came: dict[tuple[str, str], list[float]] = {}
        gate.before = self._refuse

    async def _refuse(self, call: Call) -> Answer:
        now = asyncio.get_running_loop().time()
        self.came.setdefault((call.method, f"{call.path} watch={call.is_watch}"), []).append(now)
        return refusal(*self._answer)

    @property
    def count(self) -> int:
        """Return how many calls it refused."""
        return sum(len(times) for times in self.came.values())


async def test_retry_after_is_honoured(world: World) -> None:
    """F4: nobody calls the same thing again before the time that the server asked for; the lease has its own pace."""
    async with world.gate() as (gate, url), world.operator(url=url, resync_seconds=1):
        await world.apply("a")
        await world.serves("a")
        storm = Storm(gate, 429, "TooManyRequests", retry_after_s=3)
        await world.apply("a", replicas=2)
        await world.until(lambda: storm.count >= 12)
        gate.reset()
        early = {
            call: [later - earlier for earlier, later in itertools.pairwise(times) if later - earlier < 2.9]
            for call, times in storm.came.items()
            if "/leases" not in call[1]
        }
        assert not any(early.values()), early
