"""Keeps a stream to every gateway over which it asks what keys may use. Owns the streams; `counter` decides."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from dormouse_kube.reflector import Backoff
from dormouse_operator.errors import GatewayLost
from dormouse_operator.limits.counter import LimitCounter
from dormouse_operator.limits.messages import answers_to
from dormouse_operator.observe.gateways import Gateways

_LOG = logging.getLogger(__name__)
FIND_S = 2.0  # how often gateways are looked for: for so long a new one counts alone


class LimitStreams:
    """Answers all gateways. Run it while leading only: of two that count, each would let the whole limit through."""

    def __init__(
        self,
        gateways: Gateways,
        counter: LimitCounter,
        *,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        """Take where to answer and who counts; `sleep` differs in tests only."""
        self._gateways = gateways
        self._counter = counter
        self._sleep = sleep
        self._backoff = Backoff(first_s=0.2, max_s=5.0)
        self._rng = rng or random.Random()  # noqa: S311  # jitter needs no cryptography
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        """Show how many it answers."""
        return f"LimitStreams({len(self._tasks)} gateways, {self._counter!r})"

    async def run(self) -> None:
        """Look for gateways and answer them until cancelled."""
        try:
            while True:
                await self._look()
                await self._sleep(FIND_S)
        finally:
            for task in self._tasks.values():
                task.cancel()

    async def _look(self) -> None:
        try:
            found = await self._gateways.find()
        except GatewayLost:
            return  # who listens to their load says so
        for address in found - self._tasks.keys():
            self._tasks[address] = asyncio.create_task(self._answer(address), name=f"limits {address}")
        for address in self._tasks.keys() - found:
            self._tasks.pop(address).cancel()

    async def _answer(self, address: str) -> None:
        """Answer one gateway, again after every break, until cancelled."""
        failures = 0
        while True:
            try:
                await self._gateways.share_limits(address, partial(answers_to, self._counter), lambda: len(self._tasks))
            except GatewayLost as error:
                _LOG.log(logging.DEBUG if failures else logging.WARNING, "limits are not shared: %s", error)
            except Exception:  # noqa: BLE001  # a mistake of ours costs this stream a moment, not the operator
                _LOG.exception("answering the gateway at %s failed and is begun again", address)
            failures += 1
            await self._sleep(self._backoff.delay_s(min(failures, 8), self._rng))
