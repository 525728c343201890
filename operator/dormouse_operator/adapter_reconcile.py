"""The conductor of one pass over the InferenceAdapters of one base: look → judge → publish.

Workers are told of adapters by the passes over their deployment, whose status says what became of them. This pass only
brings that to each InferenceAdapter, and why one is refused. It asks nobody, and keeps nothing that may not be lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import datetime

from dormouse_api.names import ADAPTER_KIND
from dormouse_kube.api import INFERENCE_ADAPTERS, Resource
from dormouse_kube.errors import Conflict, NotFound
from dormouse_operator.act.event_recorder import record_event
from dormouse_operator.act.writes import Writer
from dormouse_operator.decide.offered_adapters import Offered, look
from dormouse_operator.decide.status import status_patch
from dormouse_operator.model import AdaptersKey, Deployment, Key
from dormouse_operator.parse import SpecError, parse_deployment, parse_offer
from dormouse_operator.watch.cache import Cache

_LOG = logging.getLogger(__name__)
_STALE_S = 0.5  # what was written to is newer than what was looked at
_AT_A_TIME = 8  # writes: one base may have hundreds


class AdapterReconciler:
    """Writes the statuses of InferenceAdapters. Raises KubeError, NotLeading."""

    def __init__(self, writer: Writer, cache: Cache, *, clock: Callable[[], datetime], reporter: str = "") -> None:
        """Take what is written and looked at; `reporter` writes the Events."""
        self._writer = writer
        self._cache = cache
        self._clock = clock
        self._reporter = reporter
        self._seen: dict[AdaptersKey, int] = {}

    def __repr__(self) -> str:
        """Show the count."""
        return f"AdapterReconciler({len(self._seen)} bases)"

    @property
    def seen(self) -> Mapping[AdaptersKey, int]:
        """Return the version of the cache that the last pass over each base saw."""
        return self._seen

    async def reconcile(self, key: AdaptersKey) -> float | None:
        """Make one pass; return after how many seconds to make the next, None if only a change is a reason for one."""
        snapshot = self._cache.adapters_snapshot(key)
        if snapshot is None:
            self._seen.pop(key, None)
            return None
        self._seen[key] = snapshot.version
        now, limit = self._clock(), asyncio.Semaphore(_AT_A_TIME)
        offers = map(parse_offer, snapshot.adapters)

        async def publish(found: Offered) -> bool:
            async with limit:
                return await self._publish(Key(key.namespace, found.offer.resource), found, now)

        told = [publish(found) for found in look(key, _read(snapshot.base), offers, now)]
        results = await asyncio.gather(*told, return_exceptions=True)  # one that fails keeps no other from its status
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return None if all(results) else _STALE_S

    async def _publish(self, key: Key, found: Offered, now: datetime) -> bool:
        """Write a status if it changed, then tell what happened; return whether it stands."""
        offer = found.offer
        patch = status_patch(offer.raw, found.status)
        if not patch:
            return True
        try:
            await self._writer.patch_status(INFERENCE_ADAPTERS, *key, patch, resource_version=offer.resource_version)
        except (Conflict, NotFound) as error:
            _LOG.info("%s: changed since it was looked at: %s", key, error)
            return False
        for event in found.news:
            await record_event(
                self._writer, event, key=key, uid=offer.uid, now=now, reporter=self._reporter, kind=ADAPTER_KIND
            )
        return True


def _read(base: Resource | None) -> Deployment | str | None:
    """Return the base, a reason why it cannot be read, or None where there is none."""
    try:
        return parse_deployment(base) if base else None
    except SpecError as error:
        return str(error)
