"""The conductor of the passes over all InferenceKeys: look → judge → publish. Owns its own copy of them.

One pass looks at all, as of two with one digest only one counts. They are many and small, and nobody else asks for
them: so they are no part of the cache of deployments.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime

from dormouse_api.quotas import DayUse
from dormouse_kube.api import INFERENCE_KEYS, KubeApi, Resource
from dormouse_kube.errors import Conflict, KubeError, NotFound
from dormouse_kube.reflector import ObjectKey, Reflector
from dormouse_operator.act.writes import Writer
from dormouse_operator.decide.key_statuses import JudgedKey, judge, next_expiry_s, recorded_day
from dormouse_operator.decide.status import status_patch
from dormouse_operator.parse.inference_keys import parse_recorded_key

_LOG = logging.getLogger(__name__)
_STALE_S = 0.5  # what was written to is newer than what was looked at
_FAILED_S = 5.0
USAGE_S = 60.0  # so old may a recorded day's use be; and a clock may jump: an expiry is looked for again by then
_AT_A_TIME = 8  # writes


class KeyReconciler:
    """Writes the statuses of InferenceKeys. Raises NotLeading."""

    def __init__(
        self,
        kube: KubeApi,
        writer: Writer,
        days: Callable[[], Iterable[tuple[str, DayUse]]] = lambda: (),
        *,
        namespaces: Sequence[str],
        clock: Callable[[], datetime],
    ) -> None:
        """Take what is watched and written, and what keys used today; no namespace means all."""
        self._writer = writer
        self._days = days
        self._used: dict[str, DayUse] = {}
        self._used_at: datetime | None = None
        self._clock = clock
        self._changed = asyncio.Event()
        self._reflector = Reflector(kube, INFERENCE_KEYS, namespaces, is_optional=True, on_change=self._note)

    def __repr__(self) -> str:
        """Show how many are known."""
        return f"KeyReconciler({len(self._reflector.objects)} keys)"

    async def follow(self) -> None:
        """Keep the copy true, until cancelled; every operator does, also one that waits for the lease."""
        await self._reflector.run()

    async def run(self) -> None:
        """Make a pass whenever something changed or expired, until cancelled."""
        await self._reflector.synced.wait()
        while True:
            self._changed.clear()
            wait_s = await self.reconcile()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    async def reconcile(self) -> float:
        """Make one pass; return after how many seconds to make the next, if nothing changes."""
        now, limit = self._clock(), asyncio.Semaphore(_AT_A_TIME)
        self._look_at_usage(now)
        keys = [parse_recorded_key(obj) for obj in self._reflector.objects.values() if _is_there(obj)]

        async def publish(judged: JudgedKey) -> float:
            async with limit:
                return await self._publish(judged)

        waits_s = await asyncio.gather(*(publish(judged) for judged in judge(keys, now, self._used)))
        expiry_s = next_expiry_s(keys, now)
        return min([*waits_s, USAGE_S, USAGE_S if expiry_s is None else expiry_s])

    def day_of(self, full_name: str) -> DayUse | None:
        """Return what an InferenceKey's status says of a day's use, None if nothing."""
        obj = self._reflector.get(*full_name.split("/", 1)) if "/" in full_name else None
        return recorded_day(parse_recorded_key(obj)) if obj else None

    def _look_at_usage(self, now: datetime) -> None:
        """Take what was used, now and then only: a status that is written is a reason to look again."""
        if self._used_at is None or abs((now - self._used_at).total_seconds()) >= USAGE_S:
            self._used, self._used_at = dict(self._days()), now

    async def _publish(self, judged: JudgedKey) -> float:
        """Write a status if it changed; return after how many seconds to look at it again."""
        recorded = judged.recorded
        patch = status_patch(recorded.status, judged.status)
        if not patch:
            return USAGE_S
        where = recorded.namespace, recorded.name
        try:
            await self._writer.patch_status(INFERENCE_KEYS, *where, patch, resource_version=recorded.resource_version)
        except (Conflict, NotFound) as error:
            _LOG.info("InferenceKey %s/%s: changed since it was looked at: %s", *where, error)
            return _STALE_S
        except KubeError as error:
            _LOG.warning("InferenceKey %s/%s: its status was not written: %s", *where, error)
            return _FAILED_S
        return USAGE_S

    def _note(self, _key: ObjectKey, _obj: Resource | None) -> None:
        self._changed.set()


def _is_there(obj: Resource) -> bool:
    return "deletionTimestamp" not in obj["metadata"]
