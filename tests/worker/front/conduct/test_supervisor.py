"""A dead engine is replaced, a stuck one is killed first, and there is an end to it. In virtual time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import grpc
import pytest

from dormouse_api.status import retry_after_s
from dormouse_worker.common.commands import CheckHealth, Sleep, WakeUp
from dormouse_worker.common.exit_codes import EXIT_GPU_UNHEALTHY
from dormouse_worker.common.ipc import CommandRequest, Heartbeat, State
from dormouse_worker.front.app import Seams
from dormouse_worker.front.conduct.supervisor import WATCH_PERIOD_S
from dormouse_worker.front.testing import VirtualTime
from dormouse_worker.testing.fake_engine import Script


@pytest.fixture
def time():
    return VirtualTime()


@pytest.fixture
def keep(open_house, time):
    """Start a front in virtual time whose engine may be restarted three times."""

    def opened(*args, **kwargs):
        seams = Seams(clock=time, sleep=time.sleep)
        return open_house(*args, seams=seams, **{"max_engine_restarts": 3, "engine_timeout_s": 10.0, **kwargs})

    return opened


async def restart(house, time, delay_s):
    """Let the time of one backoff pass; return when the new engine has reported."""
    await time.until_nap(delay_s)
    time.advance(delay_s)
    await house.until_state(State.PROFILED)


async def look(time):
    """Let the keeper look at the heartbeat once."""
    naps = time.num_naps
    time.advance(WATCH_PERIOD_S)
    await time.until_naps(naps + 1)


async def test_a_dead_engine_is_started_again_and_serves_after_a_new_agreement(keep, time):
    async with keep() as house:
        call = await house.begin_request()
        house.engine.die(-9, "Killed")
        refused = await house.refusal(call.read())
        assert refused.code() is grpc.StatusCode.UNAVAILABLE
        assert retry_after_s(refused) > 0
        await restart(house, time, 0.0)
        assert len(house.engines) == 2
        assert await house.inference_health() == "NOT_SERVING"
        assert (await house.http("/readyz"))[0] == 503
        assert (await house.http("/healthz"))[0] == 200
        assert (await house.make_ready()).num_gpu_blocks == 40
        assert await house.inference_health() == "SERVING"
        assert (await house.http("/readyz"))[0] == 200
        assert (await house.collect("hi"))[-1].finish_reason


async def test_an_engine_whose_gpu_is_ill_is_not_started_again_and_the_worker_says_so(keep):
    """The device stays ill, and the pod stays up: only so can its status be read."""
    async with keep() as house:
        call = await house.begin_request()
        house.engine.die(EXIT_GPU_UNHEALTHY, "Xid 79 on GPU-fake: the GPU has fallen off the bus")
        assert (await house.refusal(call.read())).code() is grpc.StatusCode.UNAVAILABLE
        await house.until_state(State.FAILED)
        failure = (await house.operate("GetStatus")).failure
        assert failure.reason == "GPUUnhealthy"
        assert failure.message.startswith("Xid 79 on GPU-fake: the GPU has fallen off the bus; no engine")
        refused = await house.refusal(house.operate("CheckHealth"))
        assert (refused.code(), "Xid 79" in refused.details()) == (grpc.StatusCode.UNAVAILABLE, True)
        await house.front._keeper._tasks[0]  # it keeps nothing any more
        assert len(house.engines) == 1
        assert (await house.http("/healthz"))[0] == 200
        assert not house.running.done()


async def test_nobody_is_admitted_between_death_and_agreement(keep, time):
    async with keep() as house:
        lost = asyncio.create_task(house.until_state(State.STARTING))
        house.engine.die(1)
        await lost
        refused = await house.refusal(house.generate([1]).read())
        assert refused.code() is grpc.StatusCode.UNAVAILABLE
        assert "the worker is starting" in refused.details()
        assert (await house.http("/readyz"))[0] == 503
        await restart(house, time, 0.0)
        refused = await house.refusal(house.generate([1]).read())
        assert "the worker is profiled" in refused.details()


async def test_restarts_are_counted_and_after_the_last_the_worker_ends_with_one(keep, time):
    async with keep(ready=False) as house:
        await house.until_state(State.PROFILED)
        for delay_s in (0.0, 1.0, 2.0):
            house.engine.die(-11, "Segmentation fault")
            await restart(house, time, delay_s)
        assert 'dormouse_engine_restarts_total{model_name="tiny"} 3.0' in (await house.http("/metrics"))[1]
        house.engine.die(-11, "Segmentation fault")
        assert await house.running == 1
        failure = house.front.worker.board.failure
        assert failure.reason == "EngineDied"
        assert "signal 11 (SIGSEGV); its last words: Segmentation fault; 3 restarts within 600 s" in failure.message
        assert len(house.engines) == 4


async def test_the_status_counts_the_engines_that_died_and_tells_why_and_when_the_last_one_did(open_house, time):
    died = datetime(2026, 1, 1, tzinfo=UTC)
    seams = Seams(clock=time, sleep=time.sleep, now=lambda: died)
    async with open_house(seams=seams, max_engine_restarts=3, engine_timeout_s=10.0) as house:
        assert house.front.worker.status().engine_failures == 0
        house.engine.die(-9, "Killed")
        await restart(house, time, 0.0)
        house.engine.die(3, "no device")
        await restart(house, time, 1.0)
        status = house.front.worker.status()
    assert (status.engine_failures, status.last_engine_failure_unix_seconds) == (2, died.timestamp())
    assert status.last_engine_failure.message == "the engine process ended with exit code 3; its last words: no device"


async def test_a_worker_that_ends_restarts_nothing(keep, time):
    async with keep() as house:
        call = await house.begin_request()
        house.stop.set()
        await house.until_state(State.DRAINING)
        naps = time.num_naps
        house.engine.die(-9)
        await house.refusal(call.read())
        await house.front.worker.link.until_ended()
        assert await house.running == 0
        assert (len(house.engines), time.num_naps) == (1, naps), "nobody waits to restart"


async def test_an_end_during_the_wait_before_a_restart_is_not_held_up(keep, time):
    async with keep() as house:
        house.engine.die(-9)
        await time.until_nap(0.0)
        house.stop.set()
        assert await house.running == 0
        assert len(house.engines) == 1


async def test_an_engine_that_is_silent_while_it_should_step_is_killed_and_replaced(keep, time):
    async with keep() as house:
        time.advance(10.5)
        await time.until_naps(2)
        assert len(house.engines) == 1
        assert (await house.http("/healthz"))[0] == 503
        await look(time)
        assert await house.engine.wait() == -9
        await restart(house, time, 0.0)
        assert (await house.http("/healthz"))[0] == 200


async def test_one_look_too_late_kills_nobody(keep, time):
    """A front that was held up itself finds an old heartbeat first and the newer ones right behind it."""
    async with keep() as house:
        time.advance(60)
        await time.until_naps(2)
        house.engine.say(Heartbeat())
        await house.front.worker.command(CheckHealth())  # comes round behind the heartbeat
        for _ in range(5):
            await look(time)
        assert len(house.engines) == 1
        assert (await house.http("/healthz"))[0] == 200


async def test_a_long_command_and_long_loading_are_no_silence(keep, time):
    async with keep(Script(hangs_at="sleep")) as house:
        sleeping = asyncio.create_task(house.operate("Sleep", level=2))
        await house.engine.until_received(lambda m: isinstance(m, CommandRequest) and isinstance(m.command, Sleep))
        for _ in range(30):
            await look(time)
        assert (await house.http("/healthz"))[0] == 200
        assert len(house.engines) == 1
        house.engine.die(-9)
        assert (await house.refusal(sleeping)).code() is grpc.StatusCode.UNAVAILABLE
    async with keep(ready=False, loaded=False) as house:
        await house.until_state(State.LOADING)
        for _ in range(30):
            await look(time)
        assert (await house.http("/healthz"))[0] == 200
        assert len(house.engines) == 1


async def hang(house, method, **fields):
    """Return an order that the engine never answers."""
    order = asyncio.create_task(house.operate(method, timeout=60, **fields))
    kind = {"Sleep": Sleep, "WakeUp": WakeUp}[method]
    await house.engine.until_received(lambda m: isinstance(m, CommandRequest) and isinstance(m.command, kind))
    return order


async def test_an_engine_that_hangs_in_a_command_is_killed_and_the_caller_is_told_which_and_why(keep, time):
    async with keep(Script(hangs_at="sleep"), engine_command_timeout_s=50.0) as house:
        sleeping = await hang(house, "Sleep", level=2)
        naps = time.num_naps
        time.advance(49.9)
        await time.until_naps(naps + 1)
        await look(time)
        assert not sleeping.done()
        await look(time)
        refused = await house.refusal(sleeping)
        assert refused.code() is grpc.StatusCode.UNAVAILABLE
        assert retry_after_s(refused) > 0
        assert "sleep took longer than 50 s (--engine-command-timeout)" in refused.details()
        await restart(house, time, 0.0)
        assert (await house.make_ready()).num_gpu_blocks == 40
        assert (await house.collect("hi"))[-1].finish_reason


async def test_a_wake_up_may_take_as_long_as_loading_and_no_longer(keep, time):
    limits = {"engine_command_timeout_s": 1.0, "engine_load_timeout_s": 50.0}
    async with keep(Script(hangs_at="wake_up"), **limits) as house:
        await house.operate("Sleep", level=2)
        waking = await hang(house, "WakeUp")
        naps = time.num_naps
        time.advance(49.0)
        await time.until_naps(naps + 1)
        await look(time)
        assert (await house.http("/healthz"))[0] == 200
        time.advance(1.0)
        await look(time)
        await look(time)
        assert "wake_up took longer than 50 s (--engine-load-timeout)" in (await house.refusal(waking)).details()


async def test_an_engine_that_hangs_while_it_starts_is_killed_and_counted(keep, time):
    async with keep(ready=False, loaded=False, max_engine_restarts=0, engine_load_timeout_s=50.0) as house:
        await house.until_state(State.LOADING)
        naps = time.num_naps
        time.advance(51.0)
        await time.until_naps(naps + 1)
        assert not house.running.done(), "one look is none"
        time.advance(WATCH_PERIOD_S)
        assert await house.running == 1
        failure = house.front.worker.board.failure
        assert failure.reason == "EngineDied"
        assert "killed: it took longer to start than 50 s (--engine-load-timeout)" in failure.message


async def test_the_next_engine_has_the_whole_time_to_start(keep, time):
    async with keep(engine_load_timeout_s=50.0) as house:
        time.now_s += 1000.0
        house.engine.say(Heartbeat())
        house.engine.die(-9)
        await restart(house, time, 0.0)
        for _ in range(3):
            await look(time)
        assert len(house.engines) == 2
        assert house.engine.engine.received == []
        assert (await house.http("/healthz"))[0] == 200
