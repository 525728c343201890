"""Has generated resources judged by a real operator on a real API server, beside one that serves."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dormouse_kube.errors import Invalid
from tests.faults.operator_process import OperatorProcess
from tests.faults.world import World

BATCH = 100  # of generated resources that exist at the same time
Generate = Callable[[int, int], Sequence[Mapping[str, Any]]]  # takes how many and a seed; returns specs


class Specs:
    """Applies generated specs, and asks what became of each."""

    def __init__(self, world: World, operator: OperatorProcess) -> None:
        """Begin with none."""
        self._world = world
        self._operator = operator
        self.refused = 0  # by the API server: schema and validation rules do their work
        self.judged = 0
        self._made: set[str] = set()

    async def judge(self, specs: Mapping[str, Mapping[str, Any]]) -> None:
        """Have one batch judged by the operator, and remove it."""
        await asyncio.gather(*(self._create(name, spec) for name, spec in specs.items()))
        there = [name for name in specs if name in self._made]
        await self._world.until(lambda: all(map(self._is_judged, there)))
        self.judged += len(there)
        assert self._operator.exit_codes == []
        assert "Traceback" not in self._operator.text()
        await asyncio.gather(*(self._world.delete(name) for name in there))
        await self._world.until(lambda: not any(map(self._world.pods, there)))

    async def _create(self, name: str, spec: Mapping[str, Any]) -> None:
        try:
            await self._world.create(name, spec)
        except Invalid:
            self.refused += 1
        else:
            self._made.add(name)

    def _is_judged(self, name: str) -> bool:
        """Return whether the status speaks of this spec, and says why wherever it is not Ready."""
        if not self._world.deployment(name):
            return False
        accepted, ready = self._world.condition(name, "Accepted"), self._world.condition(name, "Ready")
        has_pods = len(self._world.pods(name)) == self._world.deployment(name)["spec"].get("replicas", 1)
        is_explained = bool(ready) and (ready["status"] == "True" or bool(ready["reason"] and ready["message"]))
        told = [
            c for c in self._world.status(name).get("conditions", ()) if c["status"] == "False" and c["type"] != "Ready"
        ]
        return bool(accepted) and is_explained and (has_pods or accepted["status"] == "False" or bool(told))


async def judge_all(world: World, generate: Generate, wanted: int, seed: int) -> Specs:
    """Have so many generated specs that the API server takes judged beside one deployment that serves."""
    world.plane.start_controllers()  # they collect the pods of those that were judged
    async with world.operator() as operator:
        await world.apply("bystander")
        await world.serves("bystander")
        specs = Specs(world, operator)
        for number in itertools.count():
            if specs.judged >= wanted:
                break
            found = generate(BATCH, seed + number)
            await specs.judge({f"g{number}-{i}": spec for i, spec in enumerate(found)})
            assert number < 20 * wanted // BATCH, "hardly anything passes the schema"
        assert world.is_ready("bystander")
        await world.apply("after")
        await world.serves("after")
        return specs
