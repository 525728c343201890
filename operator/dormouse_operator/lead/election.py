"""Elects the one operator that acts, by a Lease; its transition count is the epoch that fences commands to workers.

A lease counts as abandoned when it did not change for its whole duration *as seen on the own clock*: the clocks of two
machines are never compared. A lease of an earlier process of this very pod is taken at once: that process is dead.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from dormouse_kube.api import LEASES, KubeApi, Resource
from dormouse_kube.errors import Conflict, KubeError, NotFound
from dormouse_operator.decide.condemned import first_epoch
from dormouse_operator.errors import NotLeading

Sleep = Callable[[float], Awaitable[Any]]

_LOG = logging.getLogger(__name__)

DURATION_S = 15.0  # a lease that does not change for so long is abandoned
DEADLINE_S = 10.0  # without a renewal for so long the holder stops acting, well before another may start
RETRY_S = 2.0  # between renewals, and between tries
LOOK_S = 1.0  # between the looks of those who wait: together with the duration it bounds a hand-over


def boot_time_s() -> float:
    """Return a time that never goes back and goes on while the machine, or only this process, is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Leadership:
    """The lease as this process holds it, or waits for it. `check` and `epoch` are safe from any thread."""

    def __init__(
        self,
        kube: KubeApi,
        *,
        namespace: str,
        name: str,
        pod_uid: str,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float] = boot_time_s,
        is_well: Callable[[], bool] = lambda: True,
    ) -> None:
        """Take where the lease is and who asks; the identity is the pod's UID and this process's start.

        Where `is_well` says no, the lease is not renewed: whoever does not work must not keep others from it.
        """
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._pod_uid = pod_uid
        self._clock = clock
        self._monotonic = monotonic
        self._is_well = is_well
        self.identity = f"{pod_uid}/{clock().timestamp():.3f}"
        self._epoch = 0
        self._highest = 0  # epoch that was ever seen in the lease: it must not fall when the lease is deleted
        self._lease: Resource | None = None  # as it was written last
        self._renewed: float | None = None  # on the monotonic clock; None = not held

    def __repr__(self) -> str:
        """Show the epoch and whether it is held."""
        return f"Leadership({self._namespace}/{self._name}, epoch {self._epoch}, held={self._renewed is not None})"

    @property
    def epoch(self) -> int:
        """Return the epoch, 0 before the lease was held."""
        return self._epoch

    @property
    def leads(self) -> bool:
        """Return whether this operator may act now."""
        return self._renewed is not None and self._monotonic() - self._renewed <= DEADLINE_S

    def check(self) -> None:
        """Raise NotLeading if the lease is not held, or was renewed too long ago."""
        renewed = self._renewed
        if renewed is None:
            raise NotLeading(f"the lease {self._name} is not held by {self.identity}")
        age_s = self._monotonic() - renewed
        if age_s > DEADLINE_S:
            raise NotLeading(f"the lease {self._name} was renewed {age_s:.0f} s ago; {DEADLINE_S:.0f} s are allowed")

    async def acquire(self, sleep: Sleep = asyncio.sleep) -> None:
        """Wait until the lease is free or abandoned, and take it. Outages are waited out."""
        seen, since = "", self._monotonic()
        while True:
            try:
                lease = await self._read()
                version = lease["metadata"]["resourceVersion"] if lease else ""
                if version != seen:
                    seen, since = version, self._monotonic()
                if lease is None or self._may_take(lease, self._monotonic() - since):
                    await self._take(lease)
                    if lease is None:
                        await sleep(self._rest_of_the_second_s())
                    return
                _LOG.debug("waiting: the lease %s is held by %s", self._name, lease["spec"].get("holderIdentity"))
            except KubeError as error:
                _LOG.warning("the lease %s cannot be taken yet: %s", self._name, error)
            await sleep(min(LOOK_S, max(0.1, since + DURATION_S - self._monotonic())))

    async def keep(self, sleep: Sleep = asyncio.sleep) -> None:
        """Renew until the lease is lost. Raises NotLeading."""
        while True:
            await sleep(RETRY_S)
            if self._is_well():
                try:
                    await self._renew(self._epoch)
                except KubeError as error:
                    _LOG.warning("the lease %s was not renewed: %s", self._name, error)
            else:
                _LOG.warning("the lease %s is not renewed: the operator's loop does not turn", self._name)
            self.check()

    async def raise_above(self, epoch: int) -> None:
        """Make the epoch greater than one that a worker has seen. Raises NotLeading, KubeError."""
        if epoch >= self._epoch:
            await self._renew(epoch + 1)

    async def release(self) -> None:
        """Let the next operator start at once. Errors are not: the lease runs out by itself."""
        lease, self._renewed = self._lease, None
        if lease is None:
            return
        self._lease = None
        try:
            await self._kube.replace(LEASES, {**lease, "spec": {**lease["spec"], "holderIdentity": ""}})
        except KubeError as error:
            _LOG.info("the lease %s was not released: %s", self._name, error)

    def _may_take(self, lease: Resource, unchanged_s: float) -> bool:
        """Return whether nobody alive holds the lease."""
        holder = lease["spec"].get("holderIdentity") or ""
        is_own_pod = holder.startswith(f"{self._pod_uid}/")
        return not holder or is_own_pod or unchanged_s >= DURATION_S

    async def _take(self, lease: Resource | None) -> None:
        """Write ourselves into the lease with the next transition. Raises Conflict if another was faster."""
        first = self._highest if lease else max(self._highest, first_epoch(self._clock()))
        await self._write(lease, first + 1, acquired=self._now())
        _LOG.info("holding the lease %s with epoch %d", self._name, self._epoch)

    def _rest_of_the_second_s(self) -> float:
        """Return how long to wait before acting: whoever makes a lease anew in this second counts the same epoch."""
        return 1 - self._clock().microsecond / 1e6

    async def _renew(self, epoch: int) -> None:
        """Write the lease anew. Raises NotLeading if it is another's by now; one that was deleted is made again."""
        self.check()
        lease = self._lease
        try:
            await self._write(lease, max(epoch, self._epoch))
        except (Conflict, NotFound):
            lease = await self._read()
            if lease is not None and lease["spec"].get("holderIdentity") != self.identity:
                self._renewed = self._lease = None
                holder = lease["spec"].get("holderIdentity") or "nobody"
                raise NotLeading(f"the lease {self._name} is held by {holder}") from None
            await self._write(lease, max(epoch, self._epoch + int(lease is None)))

    async def _write(self, lease: Resource | None, epoch: int, *, acquired: str = "") -> None:
        """Make the lease ours with this epoch, in the version that is given (None: it must not exist)."""
        begin = self._monotonic()  # it is ours since the request was sent, not since the answer came
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(DURATION_S),
            "acquireTime": acquired or (lease["spec"].get("acquireTime") if lease else None) or self._now(),
            "renewTime": self._now(),
            "leaseTransitions": epoch,
        }
        if lease is None:
            metadata = {"name": self._name, "namespace": self._namespace}
            self._lease = await self._kube.create(LEASES, {"metadata": metadata, "spec": spec})
        else:
            self._lease = await self._kube.replace(LEASES, {**lease, "spec": spec})
        self._epoch = self._highest = epoch
        self._renewed = begin

    async def _read(self) -> Resource | None:
        """Return the lease, None if it does not exist, and remember the epoch in it."""
        lease = await self._kube.get(LEASES, self._namespace, self._name)
        if lease is not None:
            self._highest = max(self._highest, int(lease["spec"].get("leaseTransitions") or 0))
        return lease

    def _now(self) -> str:
        return self._clock().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
