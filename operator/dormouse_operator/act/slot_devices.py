"""Makes and deletes what holds the devices of a pool's slots: claims, or pods that reserve them. Decides nothing."""

from __future__ import annotations

from contextlib import suppress

from dormouse_kube.api import PODS, RESOURCE_CLAIMS
from dormouse_kube.errors import Conflict
from dormouse_operator.act.writes import Writer
from dormouse_operator.decide.pools.claims import Claim
from dormouse_operator.manifests import WorkerDefaults, reservation_manifest, reservation_name, slot_claim_manifest
from dormouse_operator.model.pools import Pool


class SlotDevices:
    """Writes to the API server. Raises KubeError, but no Conflict: somebody else was faster."""

    def __init__(self, writer: Writer, *, image: str, defaults: WorkerDefaults) -> None:
        """Take where to write, and what pods that reserve devices run."""
        self._writer = writer
        self._image = image
        self._defaults = defaults

    async def make(self, pool: Pool, slot: str) -> None:
        """Make what holds the devices of a slot."""
        with suppress(Conflict):
            if pool.device.reservation:
                made = reservation_manifest(pool, slot, image=self._image, defaults=self._defaults)
                await self._writer.create(PODS, made)
            else:
                await self._writer.create(RESOURCE_CLAIMS, slot_claim_manifest(pool, slot))

    async def delete(self, pool: Pool, claim: Claim) -> None:
        """Delete it. A pod that reserves keeps its devices for a while yet, unless nobody is there to leave them."""
        with suppress(Conflict):
            if pool.device.reservation:
                name, grace_s = reservation_name(claim.name), None if claim.has_pods else 1
                await self._writer.delete(PODS, pool.key.namespace, name, uid=claim.uid, grace_period_s=grace_s)
            else:
                await self._writer.delete(RESOURCE_CLAIMS, pool.key.namespace, claim.name, uid=claim.uid)
