"""By what the devices of a pool's slots are had: a claim of dynamic resource allocation, or a pod that keeps them."""

from __future__ import annotations

from dataclasses import dataclass

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"  # which NVIDIA's device plugin and container runtime agree on


@dataclass(frozen=True, slots=True)
class Reservation:
    """A pod for each slot that asks for devices of an extended resource, and tells which it got."""

    resource_name: str
    runtime_class: str = ""  # of members' pods, which see the devices by a variable; "" = the node's own
    variable: str = VISIBLE_DEVICES  # in which the device plugin names devices, and the runtime looks for them


@dataclass(frozen=True, slots=True)
class PoolDevice:
    """What each slot asks for: devices of a DeviceClass for which all CEL expressions hold, or a reservation."""

    device_class: str = ""
    selectors: tuple[str, ...] = ()
    reservation: Reservation | None = None  # without dynamic resource allocation; then there is no class


@dataclass(frozen=True, slots=True)
class SlotPlace:
    """Where the devices of a slot are, and what they are called there. Pods that see them by a variable go there."""

    node: str
    devices: tuple[str, ...]
