"""For tests: a device plugin and a kubelet for pods that reserve devices of an extended resource."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dormouse_kube.api import PODS
from dormouse_kube.testing import FakeKube
from dormouse_operator.parse import TELLER


def is_reservation(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod reserves devices."""
    return any(container["name"] == TELLER for container in pod["spec"].get("initContainers") or ())


@dataclass(slots=True)
class FakeDevicePlugin:
    """Gives each reservation the next free device of a node, and takes it back when its pod goes."""

    free: list[str] = field(default_factory=lambda: [f"GPU-{index}" for index in range(8)])
    is_slow: bool = False  # pods that are deleted keep their devices
    _held: dict[str, str] = field(default_factory=dict)  # by UID of the pod

    def tick(self, kube: FakeKube, pod: Mapping[str, Any]) -> None:
        """Let the kubelet come round to a reservation once."""
        metadata = pod["metadata"]
        if "deletionTimestamp" in metadata:
            self._end(kube, metadata)
        elif not pod.get("status"):
            self._start(kube, metadata)

    def _end(self, kube: FakeKube, metadata: Mapping[str, Any]) -> None:
        if not self.is_slow:
            if device := self._held.pop(metadata["uid"], ""):
                self.free.append(device)
            kube.finish_deletion(PODS, metadata["namespace"], metadata["name"])

    def _start(self, kube: FakeKube, metadata: Mapping[str, Any]) -> None:
        if not self.free:
            return
        device = self._held[metadata["uid"]] = self.free.pop(0)

        def run(obj: dict[str, Any]) -> None:
            obj["spec"]["nodeName"] = "node"
            told = {"name": TELLER, "state": {"terminated": {"exitCode": 0, "message": device}}}
            obj["status"] = {"phase": "Running", "initContainerStatuses": [told]}

        kube.edit(PODS, metadata["namespace"], metadata["name"], run)
