"""Deployments outside of pools whose workers tell of one GPU, as device plugins that slice time hand it out. Pure.

    they fit beside each other      the sum of gpuMemoryUtilization is 1 or less: nothing is done
    one is called and sleeps        it waits while others that are awake leave it too little
    one is awake and idle           it goes to sleep for who waits, after its minActiveSeconds
    one is awake and busy           it stays: outside of a pool nobody's requests are ended for a neighbour

What makes it hard: nobody grants a device here, so only who sleeps can be kept from it, and two that are called at the
same time must not both come. So a sleeper is held until it was seen to be called, and who waits longest counts as awake
for all that come after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from dormouse_operator.decide.situation import Situation
from dormouse_operator.decide.sleep_evidence import gather
from dormouse_operator.decide.sleep_ladder import reason_to_wake
from dormouse_operator.model import AT_REST, Deployment, Key, Rung, Turn

_UTILIZATION = 0.9  # where the spec names none, as workers have it
_WHOLE = 1.0


class Gpu(NamedTuple):
    """One GPU of a node."""

    node: str
    uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """What a deployment has of GPUs that others may have, too."""

    key: Key
    gpus: frozenset[Gpu]
    share: float  # of each GPU's memory that it takes awake
    is_awake: bool  # or may be
    waits_since: datetime | None = None  # it is called and asleep from then on
    complaint: str = ""  # why it cannot take turns, by field; "" = it can

    def after(self, before: Guest | None) -> Guest:
        """Return the same, which waits since it was first seen to."""
        is_known = before is not None and before.waits_since is not None and self.waits_since is not None
        since = before.waits_since if before and is_known else self.waits_since
        return replace(self, waits_since=since)


def guest_of(situation: Situation) -> Guest | None:
    """Return what a deployment has, None where its GPUs are a pool's, or not known."""
    deployment, activity = situation.deployment, situation.observed.activity
    gpus = frozenset(_gpus(situation))
    if not gpus:
        return None
    is_awake = any(worker.state not in AT_REST for worker in situation.workers.values())
    is_busy = activity is not None and (activity.outstanding > 0 or activity.held > 0)
    is_called = is_busy or _has_to_wake(situation)
    return Guest(
        key=deployment.key,
        gpus=gpus,
        share=deployment.engine.gpu_memory_utilization or _UTILIZATION,
        is_awake=is_awake,
        waits_since=situation.now if is_called and not is_awake else None,
        complaint=_complaint(deployment),
    )


def _has_to_wake(situation: Situation) -> bool:
    """Return whether it sleeps, and there is a reason to wake."""
    seen, ladder = situation.observed, situation.deployment.recorded.ladder
    evidence = gather(situation.deployment, seen.activity, situation.now, wanted_ago_s=seen.wanted_ago_s)
    return ladder is not None and ladder.rung is not Rung.ACTIVE and bool(reason_to_wake(evidence, ladder))


def _gpus(situation: Situation) -> Iterable[Gpu]:
    """Yield the GPUs of its pods, as the status tells, which knows them of sleepers, too."""
    cache = situation.deployment.recorded.kv_cache
    nodes = {pod.name: pod.node for pod in situation.pods if pod.node and not (pod.pool or pod.has_ended)}
    ranks = cache.ranks if cache else ()
    return (Gpu(nodes[rank.pod], rank.gpu_uuid) for rank in ranks if rank.gpu_uuid and rank.pod in nodes)


def _complaint(deployment: Deployment) -> str:
    """Return which field keeps a deployment from taking turns: all its replicas sleep alike, and orders stand."""
    if deployment.lifecycle.desired_state != "Auto":
        return f"spec.lifecycle.desiredState is {deployment.lifecycle.desired_state}, not Auto"
    if deployment.replicas > 1:
        return f"spec.replicas is {deployment.replicas}, not 1"
    if deployment.parallelism.num_ranks > 1:
        return f"spec.parallelism asks for {deployment.parallelism.num_ranks} GPUs, not 1"
    return ""


def turns_of(guests: Iterable[Guest]) -> dict[Key, Turn]:
    """Return what deployments have to do with each other, of those that share a GPU on which they do not fit."""
    known = sorted(guests, key=lambda guest: guest.key)
    awake = {guest.key for guest in known if guest.is_awake}
    told: dict[Key, Turn] = {}
    for guest in sorted(known, key=lambda guest: (guest.waits_since is None, guest.waits_since or 0, guest.key)):
        rivals = _rivals(guest, known)
        if rivals:
            told[guest.key] = _turn(guest, rivals, awake, told.get(guest.key, Turn()))
            _ask_to_leave(guest, rivals, awake, told)
            if guest.waits_since and not told[guest.key].is_held:
                awake.add(guest.key)
    return told


def _rivals(guest: Guest, known: Iterable[Guest]) -> dict[Gpu, list[Guest]]:
    """Return who else has one of its GPUs, by GPU, where not all fit beside each other."""
    beside = {gpu: [other for other in known if other is not guest and gpu in other.gpus] for gpu in guest.gpus}
    return {gpu: others for gpu, others in beside.items() if others and not _fit([guest, *others])}


def _fit(guests: Iterable[Guest]) -> bool:
    return round(sum(guest.share for guest in guests), 6) <= _WHOLE


def _turn(guest: Guest, rivals: Mapping[Gpu, list[Guest]], awake: set[Key], before: Turn) -> Turn:
    gpu, others = min(rivals.items())
    names = ", ".join(str(other.key) for other in others)
    where = f"GPU {gpu.uuid} on node {gpu.node} is shared with {names}"
    holders = [str(other.key) for other in _in_the_way(guest, rivals, awake)] if guest.waits_since else []
    return Turn(
        shares=where,
        yields_for=before.yields_for,
        is_held=not guest.is_awake and (bool(holders) or not guest.waits_since),
        waits_for=", ".join(holders),
        complaint=guest.complaint,
    )


def _in_the_way(guest: Guest, rivals: Mapping[Gpu, list[Guest]], awake: set[Key]) -> list[Guest]:
    """Return who is awake on a GPU of a guest and leaves it too little."""
    by_gpu = ([other for other in others if other.key in awake] for others in rivals.values())
    crowded = (others for others in by_gpu if others and not _fit([guest, *others]))
    return sorted({other.key: other for others in crowded for other in others}.values(), key=lambda other: other.key)


def _ask_to_leave(guest: Guest, rivals: Mapping[Gpu, list[Guest]], awake: set[Key], told: dict[Key, Turn]) -> None:
    """Have those leave for who waits that can, once nobody calls them: they know best, and look again and again."""
    if not guest.waits_since:
        return
    for other in _in_the_way(guest, rivals, awake):
        if other.is_awake and not other.complaint:
            known = told.get(other.key, Turn())
            told[other.key] = Turn(shares=known.shares, yields_for=known.yields_for or str(guest.key))
