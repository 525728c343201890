"""For tests: gateways that tell what they are told to tell. Nothing here sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from dormouse_operator.errors import GatewayLost
from dormouse_operator.model import Key
from dormouse_operator.observe.gateways import Answer, Gateways, Report, Told


@dataclass(slots=True)
class FakeGateways:
    """Gateways in memory, by address. One that is found and `refuses` cannot be listened to."""

    clock: Callable[[], float]
    found: set[str] = field(default_factory=set)
    refuses: set[str] = field(default_factory=set)
    is_lost: bool = False  # the name does not resolve
    listeners: dict[str, asyncio.Queue[Told | Exception]] = field(default_factory=dict)

    async def find(self) -> frozenset[str]:
        """See Gateways."""
        await asyncio.sleep(0)
        if self.is_lost:
            raise GatewayLost("no gateway is found under gateways: Name or service not known")
        return frozenset(self.found)

    async def watch(self, address: str) -> AsyncIterator[Told]:
        """See Gateways."""
        await asyncio.sleep(0)
        if address in self.refuses:
            raise GatewayLost(f"the gateway at {address}: it does not accept connections")
        queue = self.listeners[address] = asyncio.Queue()
        try:
            while True:
                told = await queue.get()
                if isinstance(told, Exception):
                    raise told
                yield told
        finally:
            if self.listeners.get(address) is queue:
                del self.listeners[address]

    async def share_limits(self, address: str, answer: Answer, num_gateways: Callable[[], int]) -> None:
        """See Gateways. These ask nothing."""
        del address, answer, num_gateways
        await asyncio.Event().wait()

    def tell(self, address: str, key: Key | None = None, **facts: Any) -> None:
        """Tell a report of a deployment, which completes what this gateway knows."""
        changed = {key: self.report(**facts)} if key else {}
        self.listeners[address].put_nowait(Told(changed, (), is_complete=True))

    def break_off(self, address: str, error: Exception | None = None) -> None:
        """End the stream."""
        self.listeners[address].put_nowait(error or GatewayLost(f"the gateway at {address} ended"))

    def report(self, **facts: Any) -> Report:
        """Return what a gateway knows of an idle deployment with one worker, but for what is named."""
        idle = {"in_flight": 0, "held": 0, "last_request_s": None, "known_since_s": self.clock()}
        workers = {"awake_workers": 1, "running": 0, "waiting": 0, "mean_kv_cache_usage": 0.0}
        return Report(**{**idle, **workers, **facts})


def _conforms(fake: FakeGateways) -> Gateways:
    """Let the type checker compare the fake with the protocol."""
    return fake
