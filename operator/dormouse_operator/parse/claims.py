"""What a ResourceClaim says of the devices that were allocated for it. Pure."""

from __future__ import annotations

from dormouse_operator.parse.values import Raw


def parse_consumers(claim: Raw) -> frozenset[str]:
    """Return the UIDs of those that have a claim's devices."""
    reserved = (claim.get("status") or {}).get("reservedFor") or ()
    return frozenset(str(consumer["uid"]) for consumer in reserved)


def parse_devices(claim: Raw) -> tuple[str, ...]:
    """Return the allocated devices as DRIVER/POOL/DEVICE, in the claim's order; () while there are none."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return tuple(f"{result['driver']}/{result['pool']}/{result['device']}" for result in results)
