"""What the API server is told of the stand-in GPUs, and what it tells of claims. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from localkube import spec

Raw = dict[str, Any]

DRIVER = "gpu.localkube.dormouse.dev"  # the name of the DeviceClass too
API_VERSION = "resource.k8s.io/v1"
CLASS_PATH = f"/apis/{API_VERSION}/deviceclasses/{DRIVER}"
CLAIMS_PATH = f"/apis/{API_VERSION}/resourceclaims"
MAX_GPUS = 128  # devices in one ResourceSlice
_QUANTITY = re.compile(r"([1-9][0-9]*)(Ki|Mi|Gi|Ti)?")
_UNITS = {None: 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


@dataclass(frozen=True, slots=True)
class Gpus:
    """What one node offers: so many GPUs of `memory` each, a quantity that `bytes_of` reads."""

    number: int
    memory: str
    node: str = spec.NODE_NAME  # the pool's name too

    @property
    def names(self) -> tuple[str, ...]:
        """Return the devices in the order in which the scheduler hands them out."""
        return tuple(f"gpu-{index}" for index in range(self.number))

    @property
    def slice_path(self) -> str:
        """Return where the ResourceSlice of the node lies."""
        return f"/apis/{API_VERSION}/resourceslices/{self.node}-{DRIVER}"

    def device_class(self) -> Raw:
        """Return the DeviceClass that takes every device of this driver."""
        selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
        return {
            "apiVersion": API_VERSION,
            "kind": "DeviceClass",
            "metadata": {"name": DRIVER},
            "spec": {"selectors": [selector]},
        }

    def resource_slice(self, node_uid: str) -> Raw:
        """Return the ResourceSlice with all devices; it goes with the node."""
        owner = {"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": node_uid, "controller": True}
        return {
            "apiVersion": API_VERSION,
            "kind": "ResourceSlice",
            "metadata": {"name": f"{self.node}-{DRIVER}", "ownerReferences": [owner]},
            "spec": {
                "driver": DRIVER,
                "nodeName": self.node,
                "pool": {"name": self.node, "generation": 1, "resourceSliceCount": 1},
                "devices": [self._device(name) for name in self.names],
            },
        }

    def _device(self, name: str) -> Raw:
        return {
            "name": name,
            "attributes": {"uuid": {"string": f"GPU-stand-in-{self.node}-{name}"}},
            "capacity": {"memory": {"value": self.memory}},
        }


@dataclass(frozen=True, slots=True)
class Allocated:
    """One device of ours in a claim's allocation."""

    request: str
    pool: str
    device: str


def bytes_of(quantity: str) -> int:
    """Return the bytes of a quantity such as 512Mi. Raises ValueError for what is no whole number, or another unit."""
    found = _QUANTITY.fullmatch(quantity)
    if found is None:
        raise ValueError(f"{quantity!r} is no number of bytes, Ki, Mi, Gi or Ti above 0")
    return int(found[1]) * _UNITS[found[2]]


def allocated(claim: Raw) -> tuple[Allocated, ...]:
    """Return our devices of a claim; () while it has none."""
    allocation = claim.get("status", {}).get("allocation") or {}
    results = allocation.get("devices", {}).get("results", ())
    return tuple(Allocated(r["request"], r["pool"], r["device"]) for r in results if r["driver"] == DRIVER)
