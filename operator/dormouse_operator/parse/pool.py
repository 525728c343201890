"""A GpuPool's mapping → the noun `Pool`. Pure. Raises only SpecError.

The schema refuses most of this before; whoever installed another one gets the same sentences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from dormouse_operator.model import Key
from dormouse_operator.model.pool_device import VISIBLE_DEVICES, PoolDevice, Reservation, SlotPlace
from dormouse_operator.model.pools import Idleness, Order, Pool, PoolPolicy
from dormouse_operator.parse.queues import queue_labels
from dormouse_operator.parse.recorded import parse_condition
from dormouse_operator.parse.slots import parse_slot
from dormouse_operator.parse.spec import MOST_RANKS
from dormouse_operator.parse.values import Raw, SpecError, parse_bytes, parse_time

MOST_SLOTS, MOST_AWAKE, MOST_MEMBERS = 256, 8, 256  # Kubernetes lets 256 pods use one claim
MOST_PLACES = 4096  # slots x members of each: the status lists them
LONGEST_S = 31622400  # a year
_ORDERS: Mapping[str, Order] = {"Fair": "Fair", "Priority": "Priority"}


def parse_pool(raw: Raw) -> Pool:
    """Return the GpuPool. Raises SpecError where the schema was not enforced."""
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status") or {}
    key = Key(metadata["namespace"], metadata["name"])
    num_slots, policy = _bounded(spec, "spec", "slots", None, (1, MOST_SLOTS)), _parse_policy(spec)
    if (places := num_slots * policy.max_members_per_slot) > MOST_PLACES:
        product = f"spec.slots {num_slots} x spec.maxMembersPerSlot {policy.max_members_per_slot} = {places} places"
        raise SpecError(f"{product}; the status lists at most {MOST_PLACES}: lower one of them")
    return Pool(
        key=key,
        uid=metadata["uid"],
        generation=metadata.get("generation", 1),
        queue_labels=queue_labels(metadata.get("labels")),
        device=_parse_device(spec.get("device") or {}),
        num_slots=num_slots,
        gpus_per_slot=_bounded(spec, "spec", "gpusPerSlot", 1, (1, MOST_RANKS)),
        policy=policy,
        release_after_s=_bounded(spec, "spec", "releaseAfterSeconds", 0, (0, LONGEST_S)),
        is_deleting="deletionTimestamp" in metadata,
        slots=tuple(parse_slot(item, key.namespace) for item in _named(status.get("slots"))),
        reserved=dict(_parse_reserved(status)),
        waiting=dict(_waiting(status)),
        idleness=_parse_idleness(status),
        device_bytes=_parse_count(status.get("deviceBytes")),
        conditions={item["type"]: parse_condition(item) for item in status.get("conditions") or ()},
        raw=status,
    )


def _parse_device(device: Raw) -> PoolDevice:
    claim, reservation = device.get("claim") or {}, device.get("reservation")
    if claim and reservation is not None:
        raise SpecError("spec.device has claim and reservation; set one of them")
    if reservation is not None:
        return PoolDevice(reservation=_parse_reservation(reservation))
    if not claim.get("deviceClassName"):
        raise SpecError("spec.device.claim.deviceClassName is missing; it names the DeviceClass of the GPUs")
    return PoolDevice(claim["deviceClassName"], tuple(_expressions(claim.get("selectors") or ())))


def _parse_reservation(reservation: Raw) -> Reservation:
    if not (resource := reservation.get("resourceName")):
        raise SpecError("spec.device.reservation.resourceName is missing; it names the extended resource of the GPUs")
    runtime_class = reservation.get("runtimeClassName") or ""
    return Reservation(resource, runtime_class, reservation.get("visibleDevicesVariable") or VISIBLE_DEVICES)


def _parse_reserved(status: Raw) -> Iterator[tuple[str, SlotPlace]]:
    """Yield where the devices of slots are that were recorded with both."""
    for item in _named(status.get("slots")):
        node, devices = item.get("node"), item.get("devices")
        if isinstance(node, str) and isinstance(devices, list) and devices:
            yield item["name"], SlotPlace(node, tuple(map(str, devices)))


def _expressions(selectors: Sequence[Raw]) -> Iterator[str]:
    for index, selector in enumerate(selectors):
        expression = (selector.get("cel") or {}).get("expression")
        if not expression:
            raise SpecError(f"spec.device.claim.selectors[{index}].cel.expression is missing; CEL is the only kind")
        yield str(expression)


def _parse_policy(spec: Raw) -> PoolPolicy:
    """Return the rules; what the schema does not know is as the arbiter's defaults are."""
    policy, default = spec.get("policy") or {}, PoolPolicy()
    order = policy.get("order", default.order)
    if order not in _ORDERS:
        raise SpecError(f"spec.policy.order is {order!r}; allowed are {' and '.join(_ORDERS)}")
    members = _bounded(spec, "spec", "maxMembersPerSlot", default.max_members_per_slot, (1, MOST_MEMBERS))
    awake = _bounded(spec, "spec", "awakePerSlot", default.awake_per_slot, (1, MOST_AWAKE))
    if awake > members:
        raise SpecError(f"spec.awakePerSlot is {awake}; the most is spec.maxMembersPerSlot, {members}")
    return PoolPolicy(
        order=_ORDERS[order],
        min_active_s=_bounded(policy, "spec.policy", "minActiveSeconds", int(default.min_active_s), (0, 86400)),
        patience_s=_bounded(policy, "spec.policy", "patienceSeconds", int(default.patience_s), (0, 3600)),
        awake_per_slot=awake,
        max_members_per_slot=members,
        sleeper_reserve_bytes=parse_bytes("spec.sleeperReserve", spec.get("sleeperReserve", "1Gi")),
    )


def _bounded(mapping: Raw, path: str, name: str, default: int | None, limits: tuple[int, int]) -> int:
    """Return a number of the mapping within its limits, both included. Without a default it has to be there."""
    value = mapping.get(name, default)
    if value is None:
        raise SpecError(f"{path}.{name} is missing")
    least, most = limits
    if not least <= value <= most:
        raise SpecError(f"{path}.{name} is {value}; allowed are {least} to {most}")
    return int(value)


def _named(slots: Any) -> Iterator[Raw]:
    """Return the recorded slots that say which one they are. No others can be told from a slot that is new."""
    for item in slots if isinstance(slots, list) else ():
        if isinstance(item, Mapping) and isinstance(item.get("name"), str):
            yield item


def _parse_count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _parse_idleness(status: Raw) -> Idleness:
    """Return since when nobody is awake; without that nothing is released, whatever else stands there."""
    since = parse_time(status.get("idleSince"))
    return Idleness(since, parse_time(status.get("releasedSince"))) if since else Idleness()


def _waiting(status: Raw) -> Iterator[tuple[str, datetime]]:
    for item in status.get("waiting") or ():
        if since := parse_time(item.get("since")):
            yield item["name"], since
