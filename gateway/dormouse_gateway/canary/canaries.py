"""Which requests go to a canary, and how long it may have any. Owns the trials of this gateway.

Whoever sees a canary fail stops giving it requests at once; the operator, who is told, has the others stop.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc

from dormouse_api.names import METADATA_CANARY
from dormouse_gateway.call import Write
from dormouse_gateway.canary.trial import Trial
from dormouse_gateway.clients.keys import Caller
from dormouse_gateway.model import Canary, Deployment, Meant
from dormouse_gateway.router import Router

_LOG = logging.getLogger(__name__)

ALWAYS, NEVER = "always", "never"  # what a request may ask for by METADATA_CANARY


@dataclass(slots=True)
class _Try:
    """One try of a canary."""

    name: str
    trial: Trial = field(default_factory=Trial)
    fault: str = ""


@dataclass(slots=True)
class Sighting:
    """One request of a canary, or of a deployment that has one."""

    deployment: Deployment
    began_s: float
    clock: Callable[[], float]
    first_s: float | None = None  # how long its first message took

    def writing(self, write: Write) -> Write:
        """Return what messages are to be written to."""

        async def seen(raw: bytes) -> None:
            self.note_first()
            await write(raw)

        return seen

    def note_first(self) -> None:
        """Take that a message came; the first counts."""
        if self.first_s is None:
            self.first_s = self.clock() - self.began_s


class Canaries:
    """Gives canaries their shares."""

    def __init__(
        self, router: Router, *, rng: random.Random, clock: Callable[[], float], on_abort: Callable[[Deployment], None]
    ) -> None:
        """Take who knows the deployments, the dice, the clock of first tokens, and who counts aborts."""
        self._router = router
        self._rng = rng
        self._clock = clock
        self._on_abort = on_abort
        self._tries: dict[str, _Try] = {}  # by the canary's UID

    def __repr__(self) -> str:
        """Show who was stopped."""
        stopped = sum(bool(one.fault) for one in self._tries.values())
        return f"Canaries({len(self._tries)} tried, {stopped} stopped)"

    def choose(self, meant: Meant, caller: Caller, metadata: Any) -> Meant:
        """Return what shall answer: what the name means, or its canary."""
        deployment = self._router.catalogue.canary_of(meant.deployment.key)
        if deployment is None or deployment.canary is None or not self._is_open(deployment):
            return meant
        if meant.adapter and meant.adapter not in deployment.adapters:
            return meant
        return Meant(deployment, meant.adapter) if self._is_chosen(deployment.canary, caller, metadata) else meant

    def watch(self, deployment: Deployment) -> Sighting | None:
        """Return what sees how a request goes; None where it is compared with nothing."""
        is_compared = deployment.canary or self._router.catalogue.canary_of(deployment.key)
        return Sighting(deployment, self._clock(), self._clock) if is_compared else None

    def note(self, sighting: Sighting, code: grpc.StatusCode, *, was_held: bool) -> None:
        """Take how a request ended. One that began under another try says nothing of this one."""
        seen, catalogue = sighting.deployment, self._router.catalogue
        canary = catalogue.get(seen.key) if seen.canary else catalogue.canary_of(seen.key)
        if canary is None or canary.canary is None:
            return
        if seen.canary and seen.canary.try_name != canary.canary.try_name:
            return
        one = self._try_of(canary)
        side = one.trial.canary if seen.canary else one.trial.standing
        side.note(code, None if was_held else sighting.first_s)
        if not one.fault and (fault := one.trial.fault(canary.canary)):
            self._stop(canary, one, fault)

    def _stop(self, canary: Deployment, one: _Try, fault: str) -> None:
        one.fault = fault
        _LOG.warning("the canary %s gets no more requests: %s", canary.full_name, fault)
        self._on_abort(canary)
        self._router.activity.note_fault(canary.key, one.name, fault)

    def _is_open(self, deployment: Deployment) -> bool:
        """Return whether the canary may have requests: it is not paused, was not stopped, and would be woken."""
        canary = deployment.canary
        if canary is None or canary.is_paused or canary.is_aborted or self._try_of(deployment).fault:
            return False
        return deployment.desired_state == "Auto" or self._router.pool.is_ready(deployment.key)

    def _is_chosen(self, canary: Canary, caller: Caller, metadata: Any) -> bool:
        asked = next((value for key, value in metadata or () if key == METADATA_CANARY), "")
        if asked in {ALWAYS, NEVER}:
            return bool(asked == ALWAYS)
        if caller.key and caller.key.name in canary.keys:
            return True
        return self._rng.random() * 100 < canary.weight

    def _try_of(self, deployment: Deployment) -> _Try:
        """Return the canary's trial; another spec of it begins another."""
        name = deployment.canary.try_name if deployment.canary else ""
        known = self._tries.get(deployment.uid)
        if known is None or known.name != name:
            self._forget_others()
            known = self._tries[deployment.uid] = _Try(name)
        return known

    def _forget_others(self) -> None:
        """Forget the trials of canaries that are gone."""
        there = {deployment.uid for deployment in self._router.catalogue.deployments() if deployment.canary}
        self._tries = {uid: one for uid, one in self._tries.items() if uid in there}
