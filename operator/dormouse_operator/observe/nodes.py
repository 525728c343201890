"""How much memory nodes have for pods: read one by one, as they are met, and anew now and then. Decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from dormouse_kube.api import NODES, KubeApi
from dormouse_kube.errors import Forbidden
from dormouse_operator.parse import parse_allocatable

_HOLDS_S = 300.0  # what a node has for pods changes with its kubelet's configuration


class NodeBook:
    """What nodes have, as they were last read."""

    def __init__(self, kube: KubeApi, *, clock: Callable[[], float]) -> None:
        """Take the API and a monotonic clock."""
        self._kube = kube
        self._clock = clock
        self._allocatable: dict[str, int] = {}
        self._read_s: dict[str, float] = {}

    def __repr__(self) -> str:
        """Show how many it knows."""
        return f"NodeBook({len(self._allocatable)} nodes)"

    @property
    def allocatable(self) -> Mapping[str, int]:
        """Return bytes of memory by node, of those that are known."""
        return self._allocatable

    async def look(self, names: Collection[str]) -> None:
        """Read those of these nodes that are not known, or were read long ago. Raises KubeError but no Forbidden."""
        now = self._clock()
        due = [name for name in names if now - self._read_s.get(name, -_HOLDS_S) >= _HOLDS_S]
        self._read_s.update(dict.fromkeys(due, now))  # who asks meanwhile does not read them too
        await asyncio.gather(*(self._read(name) for name in due))

    async def _read(self, name: str) -> None:
        try:
            node = await self._kube.get(NODES, "", name)
        except Forbidden:  # a release whose operator may not read nodes yet, in the middle of an upgrade
            return
        except BaseException:
            self._read_s.pop(name, None)
            raise
        self._allocatable[name] = parse_allocatable(node or {})
