"""The InferenceDeployments of the benchmark: what they say, and how they are applied and changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from bench.fleet.cluster import FLEET
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, KubeApi

AT_ONCE = 32  # requests on their way at the same time
MANAGER = "bench"


def names(first: int, last: int) -> list[str]:
    """Return the names of the deployments [first, last)."""
    return [f"d{number:05d}" for number in range(first, last)]


def spread(all_names: Sequence[str], count: int) -> list[str]:
    """Return so many names, or all if there are fewer, evenly over all."""
    wanted = min(count, len(all_names))
    return [all_names[place * len(all_names) // wanted] for place in range(wanted)]


def manifest(name: str) -> dict[str, Any]:
    """Return a deployment of one worker."""
    return {
        "apiVersion": INFERENCE_DEPLOYMENTS.api_version,
        "kind": INFERENCE_DEPLOYMENTS.kind,
        "metadata": {"name": name, "namespace": FLEET},
        "spec": {
            "model": {"uri": "file:///models/tiny"},
            "image": "worker.internal/dormouse:1",
            "engine": {"device": "cpu", "maxModelLen": 1024},
            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
        },
    }


class Deployments:
    """Applies and changes deployments, as their owner would."""

    def __init__(self, kube: KubeApi) -> None:
        self._kube = kube
        self._num_changes = 0

    def __repr__(self) -> str:
        return f"Deployments({self._num_changes} changes)"

    async def create(self, wanted: Sequence[str]) -> list[float]:
        """Create all, many at a time; return when each was answered, on the monotonic clock."""
        slots = asyncio.Semaphore(AT_ONCE)

        async def create_one(name: str) -> float:
            async with slots:
                await self._kube.create(INFERENCE_DEPLOYMENTS, manifest(name))
                return time.monotonic()

        return await asyncio.gather(*map(create_one, wanted))

    async def change(self, name: str) -> None:
        """Change the spec such that the deployment needs another pod."""
        self._num_changes += 1
        patch = manifest(name)
        patch["spec"] = {"engine": {"seed": self._num_changes}}
        await self._kube.apply(INFERENCE_DEPLOYMENTS, patch, field_manager=MANAGER)
