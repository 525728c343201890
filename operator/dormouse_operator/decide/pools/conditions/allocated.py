"""Allocated: every slot that has pods has its devices, and these are large enough. Pure."""

from __future__ import annotations

from dormouse_operator.decide.pools.budget import reserve_complaint
from dormouse_operator.model import Condition
from dormouse_operator.model.pool_observed import PoolObserved
from dormouse_operator.model.pools import Idleness

TYPE = "Allocated"


RELEASED = "Released"


def evaluate(observed: PoolObserved, idleness: Idleness) -> Condition:
    """See the module. A slot without pods has no devices: they are the cluster's."""
    if idleness.released_since:
        words = f"nobody was awake for spec.releaseAfterSeconds, {observed.pool.release_after_s} s"
        return Condition(TYPE, "Unknown", RELEASED, f"{words}: no pod has the GPUs; a request brings them back")
    if unreserved := _unreserved(observed):
        return unreserved
    used = [name for name in observed.pool.slot_names if any(True for _ in observed.pods_on(name))]
    if not used:
        return Condition(TYPE, "Unknown", "NoPods", "no member has a pod on a slot")
    robbed = ((name, pod) for name in used if (pod := observed.robbed_pod(name)))
    for name, pod in robbed:
        words = f"ResourceClaim {name} does not count pod {pod.name} any more: somebody has deallocated it by force"
        return Condition(TYPE, "False", "DevicesLost", f"{words}; its pods go, and it is made anew", is_failure=True)
    going = (name for name in used if (claim := observed.claims.get(name)) and claim.is_deleting)
    if name := next(going, ""):
        words = f"ResourceClaim {name} is being deleted; its pods wait until it is created again"
        return Condition(TYPE, "False", "ClaimGoes", words)
    for name in used:
        for _, pod in observed.pods_on(name):
            if not (pod.is_scheduled or pod.is_deleting):
                words = f": {pod.unscheduled_message}" if pod.unscheduled_message else ""
                return Condition(TYPE, "False", "WaitingForDevices", f"slot {name}: pod {pod.name} has no node{words}")
    if complaint := reserve_complaint(observed):
        return Condition(TYPE, "False", "ReserveTooLarge", complaint, is_failure=True)
    words = f"{len(used)} of {observed.pool.num_slots} slots have pods, and each of these its devices"
    how = (
        "; pods reserve them, and nothing keeps other pods of the node from them"
        if observed.pool.device.reservation
        else ""
    )
    return Condition(TYPE, "True", TYPE, f"{words}{how}")


def _unreserved(observed: PoolObserved) -> Condition | None:
    """Return which slot has no devices of its own, None where all have: without one members have no pods there."""
    for name in observed.pool.slot_names:
        claim = observed.claims.get(name)
        if twin := observed.twin_of(name):
            shared = ", ".join(claim.devices) if claim else ""
            words = f"slots {twin} and {name} were given the same device, {shared}, as it is shared out by time"
            cure = f"{name} is given to nobody; lower spec.slots, or turn sharing off in the device plugin"
            return Condition(TYPE, "False", "DeviceShared", f"{words}: {cure}", is_failure=True)
        if claim and claim.complaint:
            return Condition(TYPE, "False", "WaitingForDevices", f"slot {name}: {claim.complaint}")
    return None
