"""What adapters workers hold: asked of those that tell of a change, remembered of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Protocol

from dormouse_operator.errors import WorkerError
from dormouse_operator.model import Key, Pod, Worker
from dormouse_operator.model.adapters import HeldAdapter

_Version = tuple[str, str, int]  # pod, container, count of changes


class ListsAdapters(Protocol):
    """Who asks a worker."""

    async def list_loras(self, pod: Pod) -> tuple[HeldAdapter, ...]:
        """Return the adapters of a pod's worker. Raises WorkerError."""
        ...


class AdapterBook:
    """Remembers what workers told of their adapters. Can be lost."""

    def __init__(self, workers: ListsAdapters) -> None:
        """Take whom to ask."""
        self._workers = workers
        self._known: dict[Key, dict[str, tuple[_Version, tuple[HeldAdapter, ...]]]] = {}

    def __repr__(self) -> str:
        """Show of how many deployments it knows some."""
        return f"AdapterBook({len(self._known)} deployments)"

    async def of(
        self, key: Key, pods: Iterable[Pod], answers: Mapping[str, Worker]
    ) -> dict[str, tuple[HeldAdapter, ...]]:
        """Return what workers that answered hold, by pod name; nothing of those that cannot be asked now."""
        known = self._known.pop(key, {})
        asked = [pod for pod in pods if pod.name in answers and answers[pod.name].adapters_version]
        told = await asyncio.gather(*(self._ask(pod, answers[pod.name], known.get(pod.name)) for pod in asked))
        now = {pod.name: each for pod, each in zip(asked, told, strict=True) if each is not None}
        if now:
            self._known[key] = now
        return {name: held for name, (_, held) in now.items()}

    def forget(self, key: Key) -> None:
        """Note that the deployment is gone."""
        self._known.pop(key, None)

    async def _ask(
        self, pod: Pod, worker: Worker, known: tuple[_Version, tuple[HeldAdapter, ...]] | None
    ) -> tuple[_Version, tuple[HeldAdapter, ...]] | None:
        version = (pod.uid, worker.instance, worker.adapters_version)
        if known is not None and known[0] == version:
            return known
        try:
            return version, await self._workers.list_loras(pod)
        except WorkerError:
            return None
