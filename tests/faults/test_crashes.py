"""The operator is killed before and after each of its writes. F1 of the fault matrix, F2 in small.

The proxy between operator and API server is the failpoint: it kills the process when a write arrives, or when the
server has done it and the answer is still on its way. The operator itself knows nothing of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Literal

import pytest

from dormouse_kube.api import PODS
from tests.faults.gate import Answer, Call, Gate, Hangup
from tests.faults.operator_process import OperatorProcess
from tests.faults.world import World

Moment = Literal["before", "after"]
Choose = Callable[[int, int], Moment | None]  # number of the write (from 0), number among those to the same path


class Failpoint:
    """Kills the operator at the writes that `choose` picks; those of the lease are left out."""

    def __init__(self, gate: Gate, operator: OperatorProcess, choose: Choose) -> None:
        """Arm it."""
        self._operator = operator
        self._choose = choose
        self._chosen: dict[int, Moment | None] = {}
        self._of_path: Counter[str] = Counter()
        self.writes = 0
        self.kills = 0
        gate.before, gate.after = self._before, self._after

    async def _before(self, call: Call) -> Answer:
        if not self._counts(call):
            return None
        number, self.writes = self.writes, self.writes + 1
        self._chosen[id(call)] = self._choose(number, self._of_path[call.path])
        self._of_path[call.path] += 1
        if self._chosen[id(call)] == "before":
            self._kill()
        return None

    async def _after(self, call: Call, _: int) -> None:
        if self._counts(call) and self._chosen.get(id(call)) == "after":
            self._kill()

    def _counts(self, call: Call) -> bool:
        return call.is_write and not call.is_lease

    def _kill(self) -> None:
        self.kills += 1
        self._operator.kill()
        raise Hangup


def in_turn(_: int, number_of_path: int) -> Moment:
    """Choose every write, in turn before and after it."""
    return "after" if number_of_path % 2 else "before"


def at(wanted: int, moment: Moment, number: int, _: int) -> Moment | None:
    """Choose one write."""
    return moment if number == wanted else None


async def test_an_operator_that_is_killed_at_every_single_write_still_gets_there(world: World) -> None:
    """Each process dies at its first write: before it, and the next one that comes so far after it."""
    async with world.gate() as (gate, url), world.operator(url=url) as operator:
        failpoint = Failpoint(gate, operator, in_turn)
        await world.apply("a")
        await world.until(lambda: world.is_ready("a"), timeout_s=200)
        gate.reset()
        await world.serves("a")
        assert failpoint.kills >= 12
        assert set(operator.exit_codes) == {-9}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_one_kill_at_any_write_of_a_start_ends_in_the_same_state(world: World, moment: Moment) -> None:
    """One deployment per write: the process is killed there once, and the end is that of an undisturbed start."""
    async with world.gate() as (gate, url), world.operator(url=url) as operator:
        await world.apply("d0", replicas=2)
        await world.serves("d0", replicas=2)
        wanted = await named_alike(world, "d0")
        for number in range(100):
            failpoint = Failpoint(gate, operator, partial(at, number, moment))
            await world.apply(f"d{number + 1}", replicas=2)
            await world.serves(f"d{number + 1}", replicas=2)
            assert await named_alike(world, f"d{number + 1}") == wanted
            if not failpoint.kills:
                break
        assert number >= 8, "a start has more writes than that"


async def named_alike(world: World, name: str) -> str:
    """Return the final state as text in which a deployment's name, and what is derived from it, is left out."""
    revision = world.pods(name)[0]["metadata"]["name"].split("-")[1]
    return (
        repr(await world.shape(name))
        .replace(revision, "R")
        .replace(f"'{name}'", "N")
        .replace(f"{name}-R", "N-R")
        .replace(f"={name}", "=N")
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_kills_at_every_write_of_a_scale_down_a_sleep_and_a_wake_change_nothing(world: World) -> None:
    """The same through the rest of a deployment's life."""
    async with world.gate() as (gate, url), world.operator(url=url) as operator:
        await world.apply("a", replicas=2)
        await world.serves("a", replicas=2)
        Failpoint(gate, operator, in_turn)
        await world.apply("a", replicas=1)
        await world.until(lambda: len(world.pods("a")) == 1 and world.is_ready("a"), timeout_s=150)
        await world.apply("a", replicas=1, lifecycle={"desiredState": "Asleep"})
        await world.until(lambda: world.condition("a", "Asleep").get("status") == "True", timeout_s=150)
        await world.apply("a", replicas=1, lifecycle={"desiredState": "Active"})
        await world.until(lambda: world.condition("a", "Asleep").get("status") == "False", timeout_s=150)
        await world.until(lambda: world.is_ready("a"), timeout_s=150)
        gate.reset()
        await world.serves("a")


async def test_what_happened_while_no_operator_ran_is_mended_by_the_next(world: World) -> None:
    """F2 in small: a worker crashes, a pod is deleted and a deployment appears; then the operator comes back."""
    async with world.operator():
        await world.apply("a", replicas=2)
        await world.serves("a", replicas=2)
    first, second = (pod["metadata"]["name"] for pod in world.pods("a"))
    world.kubelet.crash(first)
    world.kubelet.starts.clear()
    await world.kube.delete(PODS, world.namespace, second)
    await world.apply("b")
    await world.until(lambda: not world.ready_pods("a"))
    async with world.operator():
        await world.serves("a", replicas=2)
        await world.serves("b")
