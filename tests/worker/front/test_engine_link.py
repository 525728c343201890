"""The connection to the engine: commands, its loss, and its end."""

from __future__ import annotations

import asyncio

import pytest

from dormouse_worker.engine.testing import ManualClock
from dormouse_worker.front.board import Changes
from dormouse_worker.front.engine_link import EngineLink, EngineLost
from dormouse_worker.ipc import CommandResult, State
from dormouse_worker.testing import InProcessEngine, Script


class Events:
    """Records what the engine said."""

    def __init__(self):
        self.said = []
        self.changes = Changes()

    def on_status(self, status):
        self._note(status.state)

    def on_outputs(self, outputs):
        self._note(outputs)

    def on_lost(self):
        self._note("lost")

    def on_death(self, exit_code, last_words):
        self._note((exit_code, last_words))

    async def until(self, what):
        await self.changes.until(lambda: what in self.said)

    def _note(self, what):
        self.said.append(what)
        self.changes.notify()


class Stubborn(InProcessEngine):
    """An engine that goes on living when the front hangs up."""

    def die(self, exit_code, words=""):
        if exit_code == -9:
            super().die(exit_code, words)


async def connect(tmp_path, engine, **options):
    events, clock = Events(), ManualClock()
    link = EngineLink(engine.spawn, events, clock, **options)
    await link.start(tmp_path / "s")
    await events.until(State.PROFILED)
    return link, events, clock


async def test_a_command_gets_its_own_answer(tmp_path):
    link, _, _ = await connect(tmp_path, InProcessEngine(Script(refusals={"sleep": ("WrongState", "no")})))
    results = await asyncio.gather(link.command("check_health"), link.command("sleep", level=2))
    assert results == [CommandResult(1), CommandResult(2, "WrongState", "no")]
    await link.stop()


async def test_a_lost_engine_fails_what_waits_and_what_comes(tmp_path):
    engine = InProcessEngine(Script(dies_at="sleep"))
    link, events, _ = await connect(tmp_path, engine)
    with pytest.raises(EngineLost):
        await link.command("sleep")
    await events.until((3, "fake engine ends at sleep"))
    assert events.said.index("lost") < events.said.index((3, "fake engine ends at sleep"))
    with pytest.raises(EngineLost):
        await link.command("check_health")
    assert (link.is_alive, link.is_connected) == (False, False)
    await link.stop()


async def test_an_engine_that_does_not_end_by_itself_is_killed_and_that_is_no_death(tmp_path):
    engine = Stubborn()
    link, events, _ = await connect(tmp_path, engine, end_grace_s=0.0)
    await link.stop()
    assert await engine.wait() == -9
    assert events.said[-1] == "lost"


async def test_an_engine_that_never_connects_and_ends_is_a_death(tmp_path):
    engine = InProcessEngine()

    async def spawn(_socket_path):
        engine.die(1, "no module named dormouse")
        return engine

    events = Events()
    link = EngineLink(spawn, events, ManualClock())
    await link.start(tmp_path / "s")
    await events.until((1, "no module named dormouse"))
    await link.stop()


class Confused(Events):
    """Can not take READY."""

    def on_status(self, status):
        super().on_status(status)
        if status.state is State.READY:
            raise LookupError("confused")


async def test_an_error_in_whoever_listens_ends_the_engine_so_that_another_can_be_started(tmp_path):
    events = Confused()
    link = EngineLink(InProcessEngine(Script()).spawn, events, ManualClock())
    await link.start(tmp_path / "s")
    await events.until(State.PROFILED)
    with pytest.raises(EngineLost):
        await link.command("initialize_cache", num_gpu_blocks=1, num_cpu_blocks=0)
    await link.until_ended()
    assert "lost" in events.said
    assert isinstance(events.said[-1], tuple), "the death was told"
    assert not link.is_alive


async def test_silence_is_measured_from_the_last_message(tmp_path):
    link, _, clock = await connect(tmp_path, InProcessEngine())
    clock.now_s += 7
    assert link.silence_s == 7
    await link.command("check_health")
    assert link.silence_s == 0
    await link.stop()


async def test_a_link_that_was_never_started_can_be_stopped():
    await EngineLink(InProcessEngine().spawn, Events(), ManualClock()).stop()
