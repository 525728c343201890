"""Asks the operator to wake a deployment: one annotation, however many requests and gateways want it.

Owns the writing; who needs a worker is said by `want` and `unwant`. The annotation stays when everyone has gone: it
says that somebody asked, and is older than the next sleep.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from dormouse_api.names import ANNOTATION_WAKE, FIELD_MANAGER_GATEWAY
from dormouse_gateway.model import Deployment
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, KubeApi
from dormouse_kube.errors import Conflict, KubeError, NotFound
from dormouse_kube.reflector import Backoff, ObjectKey

_LOG = logging.getLogger(__name__)

RENEW = timedelta(seconds=60)  # while it is still wanted: an operator that lost its way hears of it again
_TICK = timedelta(microseconds=1)


def is_due(deployment: Deployment, now: datetime) -> bool:
    """Tell whether the intent must be written: there is none, it is older than the last sleep, or than a minute."""
    asked = deployment.wake_requested_at
    if asked is None:
        return True
    is_spent = deployment.slept_at is not None and asked <= deployment.slept_at
    return is_spent or now - asked >= RENEW


def intent_time(deployment: Deployment, now: datetime) -> datetime:
    """Return the time to write: now, but newer than the last sleep though our clock may be behind the operator's."""
    slept_at = deployment.slept_at
    return now if slept_at is None or slept_at < now else slept_at + _TICK


@dataclass(slots=True)
class _Wish:
    """One deployment that is to wake."""

    since: datetime
    is_wanted: bool = True
    is_met: bool = False
    written: datetime | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class WakeWriter:
    """Writes and renews wake intents. A write under way is finished though whoever wanted it has gone."""

    def __init__(
        self,
        api: KubeApi,
        find: Callable[[ObjectKey], Deployment | None],
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        """Take where to write, and how a deployment is found that somebody wants."""
        self._api = api
        self._find = find
        self._now = now
        self._sleep = sleep
        self._rng = rng or random.Random()  # noqa: S311  # jitter needs no cryptography
        self._backoff = Backoff(first_s=0.1, max_s=5.0)
        self._wishes: dict[ObjectKey, _Wish] = {}

    def __repr__(self) -> str:
        """Show what is to wake."""
        return f"WakeWriter({', '.join(f'{key.namespace}/{key.name}' for key in sorted(self._wishes))})"

    def want(self, key: ObjectKey) -> None:
        """Have the deployment woken; changes nothing if that is under way. Called again, it looks again."""
        wish = self._wishes.get(key)
        if wish is None:
            wish = self._wishes[key] = _Wish(self._now())
            wish.task = asyncio.get_running_loop().create_task(self._pursue(key, wish), name=f"wake {key.name}")
        wish.is_wanted, wish.is_met = True, False
        wish.changed.set()

    def unwant(self, key: ObjectKey, *, is_met: bool) -> None:
        """Want it no more: nothing is renewed. What is not met, though everyone has gone, is written once all the same.

        Safe if nobody wanted it.
        """
        wish = self._wishes.get(key)
        if wish:
            wish.is_wanted, wish.is_met = False, is_met
            wish.changed.set()

    async def aclose(self) -> None:
        """Stop writing."""
        tasks = [wish.task for wish in self._wishes.values() if wish.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pursue(self, key: ObjectKey, wish: _Wish) -> None:
        """Write whenever it is due, until it is wanted no more and was written, or the deployment is gone."""
        failures = 0
        try:
            while (deployment := self._find(key)) and not self._is_over(deployment, wish):
                wish.changed.clear()
                if not self._is_due(deployment, wish):
                    await self._pause(wish)
                    continue
                try:
                    await self._write(deployment, wish)
                    failures = 0
                except (NotFound, Conflict):
                    return  # another object, or none: the watch will say so
                except KubeError as error:
                    failures += 1
                    _LOG.warning("asking for %s to wake failed: %s", deployment.full_name, error)
                    await self._sleep(self._backoff.delay_s(failures, self._rng))
        finally:
            del self._wishes[key]

    def _is_over(self, deployment: Deployment, wish: _Wish) -> bool:
        """Tell whether nobody wants it and the intent stands there, or has become pointless to write."""
        if wish.is_wanted:
            return False
        return wish.is_met or not self._is_due(deployment, wish) or self._now() - wish.since >= RENEW

    def _is_due(self, deployment: Deployment, wish: _Wish) -> bool:
        """Tell whether to write, knowing also what was just written and is not told by the watch yet."""
        if wish.written and (deployment.wake_requested_at or wish.written) <= wish.written:
            deployment = replace(deployment, wake_requested_at=wish.written)
        return is_due(deployment, self._now())

    async def _write(self, deployment: Deployment, wish: _Wish) -> None:
        """Write the annotation. With the UID, so that an object that is gone is not made anew. Raises KubeError."""
        time = intent_time(deployment, self._now())
        metadata = {
            "namespace": deployment.key.namespace,
            "name": deployment.key.name,
            "uid": deployment.uid,
            "annotations": {ANNOTATION_WAKE: time.isoformat().replace("+00:00", "Z")},
        }
        await self._api.apply(INFERENCE_DEPLOYMENTS, {"metadata": metadata}, field_manager=FIELD_MANAGER_GATEWAY)
        wish.written = time
        _LOG.info("asked for %s to wake", deployment.full_name)

    async def _pause(self, wish: _Wish) -> None:
        """Wait until something changes or it is time to renew."""
        tasks = [asyncio.ensure_future(self._sleep(RENEW.total_seconds())), asyncio.ensure_future(wish.changed.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
