"""Health on every door, and how a worker ends: asked, told, or because its engine died."""

from __future__ import annotations

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dormouse_worker.common.ipc import Leave, State
from dormouse_worker.testing.fake_engine import Script

Code = grpc.StatusCode


async def test_health_says_alive_while_loading_and_unavailable_when_the_engine_is_silent(open_house):
    async with open_house(engine_timeout_s=0.0) as house:
        refused = await house.refusal(house.operate("CheckHealth"))
        assert refused.code() is Code.UNAVAILABLE
        assert (await house.http("/healthz"))[0] == 503
    async with open_house(engine_timeout_s=0.0, ready=False, loaded=False) as house:
        await house.until_state(State.LOADING)
        assert (await house.operate("CheckHealth")).seconds_since_step >= 0
        assert (await house.http("/healthz"))[0] == 200


async def health(channel, service):
    answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


async def test_grpc_health_follows_the_state_on_both_ports(open_house):
    async with open_house(ready=False) as house:
        for channel in (house.serving, house.control):
            assert await health(channel, "") == "SERVING"
            assert await health(channel, "dormouse.v1.WorkerControl") == "SERVING"
            assert await health(channel, "dormouse.v1.Inference") == "NOT_SERVING"
        await house.make_ready()
        assert await health(house.serving, "dormouse.v1.Inference") == "SERVING"
        await house.operate("Sleep", level=2)
        assert await health(house.serving, "dormouse.v1.Inference") == "NOT_SERVING"


async def test_shutdown_drains_answers_and_ends_with_zero(house):
    call = await house.begin_request()
    ending = await house.drained_by(house.operate("Shutdown"))
    assert "shutting down" in (await house.refusal(house.generate().read())).details()
    for _ in range(3):
        house.engine.step()
    assert [t async for m in call for t in m.token_ids] == [1, 2, 3]
    await ending
    assert await house.running == 0


async def test_stopping_finishes_what_runs_within_the_time_and_ends_the_rest(open_house):
    async with open_house(drain_timeout_s=0.05) as house:
        call = await house.begin_request()
        house.stop.set()
        assert await house.running == 0
        refused = await house.refusal(call.read())
        assert (refused.code(), "0.05 s of draining" in refused.details()) == (Code.UNAVAILABLE, True)


async def test_an_engine_that_dies_under_a_command_is_unavailable(open_house):
    async with open_house(Script(dies_at="sleep")) as house:
        assert (await house.refusal(house.operate("Sleep", level=2))).code() is Code.UNAVAILABLE
        assert await house.running == 1


async def test_an_engine_that_talks_nonsense_is_a_failed_worker(open_house):
    async with open_house() as house:
        house.engine._writer.write(b"\xff\xff\xff\xff")
        assert await house.running == 1
        assert house.front.worker.board.state is State.FAILED


async def test_a_state_outside_the_lifecycle_fails_the_worker(house):
    house.engine.say(house.engine.engine._change(State.LOADING))
    await house.until_state(State.FAILED)
    assert "READY to LOADING" in house.front.worker.board.failure.message


async def test_reflection_is_a_switch(open_house):
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    async def services(house):
        requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        call = reflection_pb2_grpc.ServerReflectionStub(house.serving).ServerReflectionInfo(requests)
        return [s.name async for answer in call for s in answer.list_services_response.service]

    async with open_house(enable_reflection=True) as house:
        assert "dormouse.v1.Inference" in await services(house)
    async with open_house() as house:
        with pytest.raises(aio.AioRpcError):
            await services(house)


async def test_the_engine_is_told_that_requests_leave_and_that_they_stay_after_all(house):
    call = await house.begin_request()
    drain = await house.drained_by(house.operate("Drain", timeout_seconds=5))
    assert (await house.engine.until_received(lambda message: isinstance(message, Leave))).is_leaving
    await house.operate("WakeUp")
    await house.engine.until_received(lambda message: isinstance(message, Leave) and not message.is_leaving)
    call.cancel()
    await drain
    await house.operate("WakeUp")
    await house.operate("CheckHealth")
    told = [message.is_leaving for message in house.engine.engine.received if isinstance(message, Leave)]
    assert told == [True, False], "who is open already is told nothing"
