"""Keeps in mind what deployments hold in host memory, and who has to sleep deeper. Owns that.

`pressure` decides. What it knows can be lost: an operator that starts anew looks at every deployment and hears it
again. Until then it knows of too little, and nobody goes deeper that should not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from dormouse_operator.decide.pressure import Budgets, Holding, holding_of, is_short, relieve
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Key, Pressure


class Nodes(Protocol):
    """Who knows how much memory nodes have."""

    @property
    def allocatable(self) -> Mapping[str, int]:
        """Return it in bytes by node, of those that are known."""
        ...

    async def look(self, names: Collection[str]) -> None:
        """Make these known. Raises KubeError."""
        ...


class HostMemoryBook:
    """What all deployments hold, as they were last observed."""

    def __init__(
        self,
        budgets: Budgets,
        *,
        clock: Callable[[], datetime],
        mark: Callable[[Key], None],
        nodes: Nodes | None = None,
    ) -> None:
        """Take what may be kept on each node, and who hears of deployments that have to be looked at.

        Without `nodes` only copies of sleepers are limited.
        """
        self._budgets = budgets
        self._clock = clock
        self._mark = mark
        self._nodes = nodes
        self._holdings: dict[Key, Holding] = {}
        self._on_node: defaultdict[str, set[Key]] = defaultdict(set)
        self._told: dict[Key, Pressure] = {}

    def __repr__(self) -> str:
        """Show the counts."""
        return f"HostMemoryBook({len(self._holdings)} hold something, {len(self._told)} have to go deeper)"

    def pressure_on(self, key: Key) -> Pressure | None:
        """Return how deep a deployment has to sleep for lack of memory, None if as it does."""
        return self._told.get(key)

    async def look_at(self, nodes: Collection[str]) -> None:
        """Make known how much memory nodes have, if that limits anything. Raises KubeError."""
        if self._nodes and self._budgets.max_node_percent:
            await self._nodes.look(nodes)

    def saw(self, situation: Situation) -> None:
        """Take a deployment as it was just observed."""
        key = situation.deployment.key
        before = self._holdings.get(key)
        holding = holding_of(situation).after(before)
        if not any(pod.taken_at(0) for pod in holding.pods):
            self.forget(key)
            return
        touched = self._put(holding, before)
        self._decide(touched)

    def forget(self, key: Key) -> None:
        """Know that a deployment keeps nothing (any more); safe if it never did."""
        before = self._holdings.pop(key, None)
        if before:
            for node in before.nodes:
                self._on_node[node].discard(key)
            self._decide(before.nodes)

    def rejected(self, key: Key, uid: str) -> None:  # noqa: ARG002  # as every listener is told
        """Know that nobody can say what a deployment keeps."""
        self.forget(key)

    def _put(self, holding: Holding, before: Holding | None) -> frozenset[str]:
        """Note what a deployment holds; return the nodes that it concerns."""
        gone = before.nodes - holding.nodes if before else frozenset[str]()
        for node in gone:
            self._on_node[node].discard(holding.key)
        for node in holding.nodes:
            self._on_node[node].add(holding.key)
        self._holdings[holding.key] = holding
        return holding.nodes | gone

    def _decide(self, touched: Collection[str]) -> None:
        """Decide anew where there is a reason to, and have those looked at whom it concerns since now."""
        budgets = replace(self._budgets, allocatable=self._nodes.allocatable) if self._nodes else self._budgets
        near = {key for node in touched for key in self._on_node[node]}
        if not (self._told or is_short((self._holdings[key] for key in near), budgets, touched)):
            return
        before = self._told
        self._told = relieve(self._holdings.values(), budgets, now=self._clock(), begun=before)
        for key, told in self._told.items():
            if key not in before or before[key].level != told.level:
                self._mark(key)
