"""The connection to the engine: commands, its loss, and its end."""

from __future__ import annotations

import asyncio

import pytest

from dormouse_worker.common.commands import CheckHealth, InitializeCache, Sleep
from dormouse_worker.common.ipc import CommandRequest, CommandResult, State
from dormouse_worker.engine.testing import ManualClock
from dormouse_worker.front.engine.link import EngineLink, EngineLost, EngineOverdue
from dormouse_worker.front.engine.status_board import Changes
from dormouse_worker.front.engine.watchdog import RunningCommand
from dormouse_worker.testing.fake_engine import Script
from dormouse_worker.testing.in_process import InProcessEngine


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
    results = await asyncio.gather(link.command(CheckHealth()), link.command(Sleep(2)))
    assert results == [CommandResult(1), CommandResult(2, "WrongState", "no")]
    await link.stop()


async def test_a_lost_engine_fails_what_waits_and_what_comes(tmp_path):
    engine = InProcessEngine(Script(dies_at="sleep"))
    link, events, _ = await connect(tmp_path, engine)
    with pytest.raises(EngineLost):
        await link.command(Sleep())
    await events.until((3, "fake engine ends at sleep"))
    assert events.said.index("lost") < events.said.index((3, "fake engine ends at sleep"))
    with pytest.raises(EngineLost):
        await link.command(CheckHealth())
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
        await link.command(InitializeCache(1, 0))
    await link.until_ended()
    assert "lost" in events.said
    assert isinstance(events.said[-1], tuple), "the death was told"
    assert not link.is_alive


async def test_silence_is_measured_from_the_last_message(tmp_path):
    link, _, clock = await connect(tmp_path, InProcessEngine())
    clock.now_s += 7
    assert link.silence_s == 7
    await link.command(CheckHealth())
    assert link.silence_s == 0
    await link.stop()


def is_sleep(message):
    return isinstance(message, CommandRequest) and isinstance(message.command, Sleep)


async def test_a_command_lasts_until_its_answer_whoever_stopped_waiting(tmp_path):
    engine = InProcessEngine(Script(hangs_at="sleep"))
    link, _, clock = await connect(tmp_path, engine)
    assert link.running_command is None
    waiting = asyncio.create_task(link.command(Sleep()))
    command = await engine.until_received(is_sleep)
    clock.now_s += 7
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert link.running_command == RunningCommand(Sleep(), 7)
    engine.say(CommandResult(command.command_id))
    await link.command(CheckHealth())
    assert link.running_command is None
    await link.stop()


async def test_a_command_is_timed_from_the_end_of_the_one_before(tmp_path):
    engine = InProcessEngine(Script(hangs_at="sleep"))
    link, _, clock = await connect(tmp_path, engine)
    first = asyncio.create_task(link.command(Sleep()))
    second = asyncio.create_task(link.command(Sleep(1)))
    sleeping = await engine.until_received(is_sleep)
    clock.now_s += 7
    assert link.running_command == RunningCommand(Sleep(), 7)
    engine.say(CommandResult(sleeping.command_id))
    await first
    clock.now_s += 2
    assert link.running_command == RunningCommand(Sleep(1), 2)
    link.kill("bored")
    with pytest.raises(EngineOverdue, match="bored"):
        await second
    await link.stop()


async def test_an_engine_killed_with_a_reason_tells_it_and_the_next_one_has_none(tmp_path):
    engines = [InProcessEngine(Script(hangs_at="sleep")), InProcessEngine()]
    events = Events()

    async def spawn(socket_path):
        return await engines[0].spawn(socket_path)

    link = EngineLink(spawn, events, ManualClock())
    await link.start(tmp_path / "s")
    await events.until(State.PROFILED)
    waiting = asyncio.create_task(link.command(Sleep()))
    await engines[0].until_received(is_sleep)
    link.kill("sleep took too long")
    with pytest.raises(EngineOverdue, match="the engine was killed: sleep took too long"):
        await waiting
    await link.until_ended()
    assert (link.why_killed, link.running_command) == ("sleep took too long", None)
    engines.pop(0)
    await link.start(tmp_path / "s")
    assert link.why_killed == ""
    await link.stop()


class LastAge(Events):
    """Asks for the engine's age when it hangs up."""

    def on_lost(self):
        self.age_s = self.link.age_s
        super().on_lost()


async def test_an_engine_ages_from_its_start_until_it_hangs_up(tmp_path):
    """Afterwards it must not be taken for one that starts, which is the state of a worker without an engine."""
    engine, events, clock = InProcessEngine(), LastAge(), ManualClock()
    events.link = link = EngineLink(engine.spawn, events, clock)
    assert link.age_s == 0
    await link.start(tmp_path / "s")
    await events.until(State.PROFILED)
    clock.now_s += 7
    assert link.age_s == 7
    engine.die(1)
    await link.until_ended()
    assert events.age_s == 0


async def test_a_link_that_was_never_started_can_be_stopped():
    await EngineLink(InProcessEngine().spawn, Events(), ManualClock()).stop()


async def test_an_engine_that_was_ended_is_no_death_and_another_one_can_follow(tmp_path):
    engine = InProcessEngine()
    link, events, _ = await connect(tmp_path, engine)
    await link.end()
    assert (link.is_alive, events.said[-1]) == (False, "lost")
    link._spawn = InProcessEngine().spawn
    events.said.clear()
    await link.start(tmp_path / "s")
    await events.until(State.PROFILED)
    await link.stop()


async def test_an_engine_that_is_ended_at_once_gets_no_time(tmp_path):
    engine = Stubborn()
    link, events, _ = await connect(tmp_path, engine, end_grace_s=600)
    async with asyncio.timeout(90):
        await link.end(at_once=True)
    assert (await engine.wait(), events.said[-1]) == (-9, "lost")


async def test_the_end_of_no_engine_is_nothing():
    link = EngineLink(InProcessEngine().spawn, Events(), ManualClock())
    await link.until_ended()
    await link.end()
    assert not link.is_alive


async def test_an_engine_that_nobody_wants_by_the_time_is_not_started(tmp_path):
    engine = InProcessEngine()
    link = EngineLink(engine.spawn, Events(), ManualClock())
    assert not await link.start(tmp_path / "s", lambda: False)
    assert (link.is_alive, engine.is_spawned) == (False, False)
    assert await link.start(tmp_path / "s", lambda: True)
    await link.stop()
