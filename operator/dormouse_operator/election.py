"""Elects the one operator that acts, by a Lease; its transition count is the epoch that fences commands to workers.

A lease counts as abandoned when it did not change for its whole duration *as seen on the own clock*: the clocks of two
machines are never compared. A lease of an earlier process of this very pod is taken at once: that process is dead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from dormouse_kube.api import LEASES, KubeApi, Resource
from dormouse_kube.errors import Conflict, KubeError
from dormouse_operator.errors import NotLeading

_LOG = logging.getLogger(__name__)

DURATION_S = 15.0  # a lease that does not change for so long is abandoned
RENEW_S = 5.0
STOP_S = 10.0  # without a renewal for so long the holder stops acting, well before another may start
_RETRY_S = 1.0


class Leadership:
    """The lease as this process holds it, or waits for it."""

    def __init__(
        self,
        kube: KubeApi,
        *,
        namespace: str,
        name: str,
        pod_uid: str,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take where the lease is and who asks; the identity is the pod's UID and this process's start."""
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._pod_uid = pod_uid
        self._clock = clock
        self._monotonic = monotonic
        self.identity = f"{pod_uid}/{clock().timestamp():.3f}"
        self._epoch = 0
        self._renewed: float | None = None  # on the monotonic clock; None = not held

    def __repr__(self) -> str:
        """Show the epoch and whether it is held."""
        return f"Leadership({self._namespace}/{self._name}, epoch {self._epoch}, held={self._renewed is not None})"

    @property
    def epoch(self) -> int:
        """Return the epoch, 0 before the lease was held."""
        return self._epoch

    def check(self) -> None:
        """Raise NotLeading if the lease is not held, or was renewed too long ago."""
        if self._renewed is None:
            raise NotLeading(f"the lease {self._name} is not held by {self.identity}")
        age_s = self._monotonic() - self._renewed
        if age_s > STOP_S:
            raise NotLeading(f"the lease {self._name} was renewed {age_s:.0f} s ago; {STOP_S:.0f} s are allowed")

    async def acquire(self, sleep: Callable[[float], Awaitable[Any]]) -> None:
        """Wait until the lease is free or abandoned, and take it. Outages are waited out."""
        seen, since = "", self._monotonic()
        while True:
            try:
                lease = await self._kube.get(LEASES, self._namespace, self._name)
                version = lease["metadata"]["resourceVersion"] if lease else ""
                if version != seen:
                    seen, since = version, self._monotonic()
                if lease is None or self._may_take(lease, self._monotonic() - since):
                    await self._take(lease)
                    return
                _LOG.info("waiting: the lease %s is held by %s", self._name, lease["spec"].get("holderIdentity"))
            except KubeError as error:
                _LOG.warning("the lease %s can not be taken yet: %s", self._name, error)
            await sleep(_RETRY_S)

    async def keep(self, sleep: Callable[[float], Awaitable[Any]]) -> None:
        """Renew until the lease is lost. Raises NotLeading."""
        while True:
            await sleep(RENEW_S if self._is_fresh() else _RETRY_S)
            try:
                await self._renew(self._epoch)
            except KubeError as error:
                _LOG.warning("the lease %s was not renewed: %s", self._name, error)
            self.check()

    async def raise_above(self, epoch: int) -> None:
        """Make the epoch greater than one that a worker has seen. Raises NotLeading, KubeError."""
        if epoch >= self._epoch:
            await self._renew(epoch + 1)

    async def release(self) -> None:
        """Let the next operator start at once. Errors are not: the lease runs out by itself."""
        if self._renewed is None:
            return
        self._renewed = None
        try:
            lease = await self._read_own()
            await self._kube.replace(LEASES, {**lease, "spec": {**lease["spec"], "holderIdentity": ""}})
        except (KubeError, NotLeading) as error:
            _LOG.info("the lease %s was not released: %s", self._name, error)

    def _is_fresh(self) -> bool:
        """Tell whether the last renewal succeeded in time."""
        return self._renewed is not None and self._monotonic() - self._renewed < _RETRY_S

    def _may_take(self, lease: Resource, unchanged_s: float) -> bool:
        """Tell whether nobody alive holds the lease."""
        holder = lease["spec"].get("holderIdentity") or ""
        is_own_pod = holder.startswith(f"{self._pod_uid}/")
        return not holder or is_own_pod or unchanged_s >= DURATION_S

    async def _take(self, lease: Resource | None) -> None:
        """Write ourselves into the lease with the next transition. Raises Conflict if another was faster."""
        transitions = int(lease["spec"].get("leaseTransitions") or 0) if lease else 0
        spec = self._spec(transitions + 1)
        if lease is None:
            metadata = {"name": self._name, "namespace": self._namespace}
            await self._kube.create(LEASES, {"metadata": metadata, "spec": spec})
        else:
            await self._kube.replace(LEASES, {**lease, "spec": spec})
        self._hold(transitions + 1)
        _LOG.info("holding the lease %s with epoch %d", self._name, self._epoch)

    async def _renew(self, epoch: int) -> None:
        """Write the lease anew; a conflict is read again once, as only `acquire` of another may cause it."""
        try:
            await self._write(epoch)
        except Conflict:
            await self._write(epoch)

    async def _write(self, epoch: int) -> None:
        begin = self._monotonic()
        lease = await self._read_own()
        spec = {**self._spec(max(epoch, self._epoch)), "acquireTime": lease["spec"].get("acquireTime")}
        await self._kube.replace(LEASES, {**lease, "spec": spec})
        self._hold(spec["leaseTransitions"], begin)

    async def _read_own(self) -> Resource:
        """Return the lease. Raises NotLeading if it is another's, or gone."""
        lease = await self._kube.get(LEASES, self._namespace, self._name)
        holder = (lease["spec"].get("holderIdentity") or "nobody") if lease else "nobody"
        if lease is None or holder != self.identity:
            self._renewed = None
            raise NotLeading(f"the lease {self._name} is held by {holder}")
        return lease

    def _hold(self, epoch: int, begin: float | None = None) -> None:
        """Note that the lease is ours since the request was sent, not since the answer came."""
        self._epoch = epoch
        self._renewed = self._monotonic() if begin is None else begin

    def _spec(self, transitions: int) -> Mapping[str, Any]:
        now = self._clock().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(DURATION_S),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }
