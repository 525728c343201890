"""What goes on per deployment, summed over all gateways. Owns what each of them told, and the streams to them.

A gateway that exists and is not heard of may be busy with anything: until it is, nothing is known of any deployment,
except who is wanted: a request that waits for a wake at one gateway is reason enough, whatever the others say.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dormouse_kube.reflector import Backoff
from dormouse_operator.errors import GatewayLost
from dormouse_operator.model import Activity, Key
from dormouse_operator.observe.gateways import Gateways, Report, Told

_LOG = logging.getLogger(__name__)

_SAME_S = 1.0  # ages that came by different messages tell the same time, give or take this
FIND_S = 2.0  # how often gateways are looked for: for so long a new one's requests may wake nothing


@dataclass(slots=True)
class _Gateway:
    """What one gateway told since its stream began."""

    reports: dict[Key, Report] = field(default_factory=dict)
    is_complete: bool = False
    is_heard: bool = False


class ActivityBook(Mapping[Key, Activity]):
    """The activity of every deployment that all gateways know; empty while any gateway is not heard of."""

    def __init__(self, clock: Callable[[], float], on_news: Callable[[Collection[Key]], None] | None = None) -> None:
        """Start without gateways: nothing is known. The clock is that of the reports.

        `on_news` hears of deployments whose activity came to be known, and of those that came to hold requests.
        """
        self._clock = clock
        self._on_news = on_news
        self._gateways: dict[str, _Gateway] = {}

    def __repr__(self) -> str:
        """Show who is heard of."""
        states = {address: "complete" if one.is_complete else "lost" for address, one in sorted(self._gateways.items())}
        return f"ActivityBook({states})"

    @property
    def is_known(self) -> bool:
        """Return whether there are gateways and all of them told everything."""
        return bool(self._gateways) and all(one.is_complete for one in self._gateways.values())

    @property
    def addresses(self) -> frozenset[str]:
        """Return where gateways are expected."""
        return frozenset(self._gateways)

    def __getitem__(self, key: Key) -> Activity:
        """Return a deployment's activity. Raises KeyError where it is not known."""
        reports = [one.reports[key] for one in self._gateways.values()]  # KeyError: this one may not know it yet
        if not self.is_known:
            raise KeyError(key)
        return _sum(reports, self._clock())

    def __iter__(self) -> Iterator[Key]:
        """Yield the deployments whose activity is known."""
        if not self.is_known:
            return iter(())
        first, *others = [one.reports.keys() for one in self._gateways.values()]
        return iter([key for key in first if all(key in keys for keys in others)])

    def __len__(self) -> int:
        """Return how many are known."""
        return sum(1 for _ in self)

    def wanted_ago_s(self, key: Key) -> float | None:
        """Return since when no request waits for the deployment to wake, 0 while one does; None if none did.

        Only those are heard of whose streams are open; that is enough to wake, never to go to sleep.
        """
        reports = [one.reports[key] for one in self._gateways.values() if key in one.reports]
        if any(report.held for report in reports):
            return 0.0
        times = [report.wanted_s for report in reports if report.wanted_s is not None]
        return max(0.0, self._clock() - max(times)) if times else None

    def canary_fault(self, key: Key, try_name: str) -> str:
        """Return why a gateway gives this try of a canary no more requests, "" where none said so."""
        reports = [one.reports[key] for one in self._gateways.values() if key in one.reports]
        return next((each.canary_fault for each in reports if each.canary_fault and each.canary_try == try_name), "")

    def is_heard(self, address: str) -> bool:
        """Return whether the gateway's stream is open."""
        return address in self._gateways and self._gateways[address].is_heard

    def expect(self, address: str) -> None:
        """Know that there is a gateway, of which nothing was heard (any more)."""
        self._gateways[address] = _Gateway()

    def drop(self, address: str) -> None:
        """Forget a gateway that is gone; safe if it is not known."""
        was_known = self.is_known
        self._gateways.pop(address, None)
        if self.is_known and not was_known:
            self._tell(list(self))

    def take(self, address: str, told: Told) -> None:
        """Take what a gateway told; it is expected from now on."""
        gateway = self._gateways.setdefault(address, _Gateway())
        gateway.is_heard = True
        was_known = self.is_known
        wanted = {key for key, report in told.changed.items() if _is_news(gateway.reports.get(key), report)}
        fresh = told.changed.keys() - gateway.reports.keys()
        gateway.reports.update(told.changed)
        for key in told.removed:
            gateway.reports.pop(key, None)
        gateway.is_complete = gateway.is_complete or told.is_complete
        if self.is_known:
            wanted.update(fresh if was_known else self)
        self._tell(wanted)

    def _tell(self, keys: Collection[Key]) -> None:
        if self._on_news and keys:
            self._on_news(keys)


class ActivityWatch:
    """Keeps a stream to every gateway and the book true."""

    def __init__(
        self,
        gateways: Gateways,
        book: ActivityBook,
        *,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        """Take where to listen and who is told; `sleep` differs in tests only."""
        self._gateways = gateways
        self._book = book
        self._sleep = sleep
        self._backoff = Backoff(first_s=0.2, max_s=5.0)
        self._rng = rng or random.Random()  # noqa: S311  # jitter needs no cryptography
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._could_look = True  # the last time; what stays as it is is told once

    def __repr__(self) -> str:
        """Show what is known."""
        return f"ActivityWatch({self._book!r})"

    async def run(self) -> None:
        """Look for gateways and follow them until cancelled. Outages are waited out; then nothing is known."""
        try:
            while True:
                await self._look()
                await self._sleep(FIND_S)
        finally:
            for address in list(self._tasks):
                self._stop(address)

    async def _look(self) -> None:
        """Follow gateways that are new, drop those that are gone."""
        try:
            found = await self._gateways.find()
        except GatewayLost as error:
            _LOG.log(logging.WARNING if self._could_look else logging.DEBUG, "the load is not known: %s", error)
            self._could_look = False
            return
        self._could_look = True
        for address in sorted(found - self._tasks.keys()):
            self._book.expect(address)
            self._tasks[address] = asyncio.create_task(self._follow(address), name=f"gateway {address}")
        for address in sorted(self._tasks.keys() - found):
            if not self._book.is_heard(address):  # one that ends still tells of its last requests
                self._stop(address)

    def _stop(self, address: str) -> None:
        self._tasks.pop(address).cancel()
        self._book.drop(address)

    async def _follow(self, address: str) -> None:
        """Listen to one gateway, again after every break, until cancelled."""
        failures = 0
        while True:
            try:
                async for told in self._gateways.watch(address):
                    failures = 0
                    self._book.take(address, told)
            except GatewayLost as error:
                _LOG.log(logging.DEBUG if failures else logging.WARNING, "the load is not known: %s", error)
            except Exception:  # noqa: BLE001  # a mistake of ours costs this stream a moment, not the operator
                _LOG.exception("listening to the gateway at %s failed and is begun again", address)
            self._book.expect(address)
            failures += 1
            await self._sleep(self._backoff.delay_s(failures, self._rng))


def _is_news(known: Report | None, report: Report) -> bool:
    """Return whether a request waits, or waited meanwhile, or a canary failed, and nobody was told."""
    if report.canary_fault and (known is None or known.canary_try != report.canary_try):
        return True
    if report.held:
        return known is None or not known.held
    if report.wanted_s is None or (known and known.held):
        return False
    return known is None or known.wanted_s is None or report.wanted_s > known.wanted_s + _SAME_S


def _sum(reports: list[Report], now_s: float) -> Activity:
    """Add what gateways serve. All of them hear the same workers: of those the one that hears most is believed."""
    in_flight = sum(report.in_flight for report in reports)
    active_s = max(
        report.known_since_s if report.last_request_s is None else report.last_request_s for report in reports
    )
    running, waiting = max(report.running for report in reports), max(report.waiting for report in reports)
    nearest = max(reports, key=lambda report: (report.awake_workers, report.mean_kv_cache_usage))
    return Activity(
        in_flight=in_flight,
        held=sum(report.held for report in reports),
        quiet_s=0.0 if in_flight or running or waiting else max(0.0, now_s - active_s),
        awake_workers=nearest.awake_workers,
        running=running,
        waiting=waiting,
        mean_kv_cache_usage=nearest.mean_kv_cache_usage,
    )
