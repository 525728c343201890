"""A new engine until somebody is served by it: what became of its start, and what it did before it was handed over."""

from __future__ import annotations

import asyncio
import time

from dormouse_worker.common.commands import InitializeCache
from dormouse_worker.common.ipc import State
from dormouse_worker.front.engine.newcomer import NewcomerEngine
from dormouse_worker.testing.fake_engine import Script
from dormouse_worker.testing.in_process import InProcessEngine


class Heir:
    """Hears what the engine says afterwards."""

    def __init__(self):
        self.heard = []
        self.died = asyncio.Event()

    def on_status(self, status):
        self.heard.append(status.state)

    def on_outputs(self, outputs):
        self.heard.append(outputs)

    def on_lost(self):
        self.heard.append("lost")

    def on_death(self, exit_code, last_words):
        self.heard.append((exit_code, last_words))
        self.died.set()


def make(script=None):
    engine = InProcessEngine(script)
    return engine, NewcomerEngine(engine.spawn, time.monotonic)


async def test_one_that_profiles_is_handed_over_alive(tmp_path):
    engine, newcomer = make()
    assert await newcomer.start(tmp_path / "socket", 10) is None
    assert newcomer.status.state is State.PROFILED
    heir = Heir()
    newcomer.hand_over(heir)
    await newcomer.link.command(InitializeCache(4, 0))
    assert heir.heard == [State.INITIALIZING, State.READY]
    await newcomer.end()
    assert await engine.wait() == -9


async def test_a_death_before_the_hand_over_is_told_at_the_hand_over(tmp_path):
    engine, newcomer = make()
    await newcomer.start(tmp_path / "socket", 10)
    engine.die(-11, "Segmentation fault")
    await newcomer.link.until_ended()
    heir = Heir()
    newcomer.hand_over(heir)
    assert heir.heard == ["lost", (-11, "Segmentation fault")]


async def test_a_death_after_the_hand_over_is_the_heir_s(tmp_path):
    engine, newcomer = make()
    await newcomer.start(tmp_path / "socket", 10)
    heir = Heir()
    newcomer.hand_over(heir)
    engine.die(3, "oops")
    await heir.died.wait()
    assert heir.heard == ["lost", (3, "oops")]


async def test_one_that_can_not_be_started_says_so(tmp_path):
    async def spawn(_):
        raise FileNotFoundError("no such program")

    newcomer = NewcomerEngine(spawn, time.monotonic)
    failure = await newcomer.start(tmp_path / "socket", 10)
    assert (failure.reason, "no such program" in failure.message) == ("EngineDied", True)
    await newcomer.end()


async def test_one_given_up_before_it_starts_is_never_started(tmp_path):
    engine, newcomer = make(Script(hangs_at="load"))
    newcomer.give_up("Recalled", "not wanted")
    newcomer.give_up("Other", "the first reason stays")
    failure = await newcomer.start(tmp_path / "socket", 10)
    assert (failure.reason, failure.message) == ("Recalled", "not wanted")
    await newcomer.end()
    assert not engine.is_spawned


async def test_one_whose_time_ends_while_its_process_is_being_started_leaves_no_process(tmp_path):
    engine, may_start = InProcessEngine(), asyncio.Event()

    async def spawn(socket_path):
        await may_start.wait()
        return await engine.spawn(socket_path)

    newcomer = NewcomerEngine(spawn, time.monotonic)
    failure = await newcomer.start(tmp_path / "socket", 0.01)
    assert failure.reason == "ProgressDeadlineExceeded"
    ending = asyncio.create_task(newcomer.end())
    may_start.set()
    await ending
    assert await engine.wait() in {0, -9}
    assert not newcomer.link.is_alive
