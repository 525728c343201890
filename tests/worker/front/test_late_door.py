"""What comes to a worker that drains from within its pod, where another gateway had sent it before."""

import asyncio
import threading

import aiohttp
import grpc
import pytest
from grpc import aio

from dormouse_api.listening import listen
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as inference_rpc
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_gateway.beside import Flags, LetIn, make_door
from dormouse_worker.common.ipc import State
from dormouse_worker.front.text.turns import NUM_THREADS
from tests.waiting import until

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
WATCH = pb.WatchLoadRequest()


@pytest.fixture
async def pod(open_house, tmp_path):
    """A worker that also serves its pod, and the stub of who is in there."""
    socket = tmp_path / "inference.sock"
    async with open_house(local_socket=str(socket)) as house, aio.insecure_channel(f"unix:{socket}") as channel:
        house.front.worker.late_door.open_s = 3600.0  # until it is shut
        yield house, inference_rpc.InferenceStub(channel)


def generate(stub, **prompt):
    prompt = prompt or {"token_ids": pb.TokenIds(ids=[1, 2, 3])}
    request = pb.GenerateRequest(**prompt, sampling_params=pb.SamplingParams(max_tokens=3))
    return stub.Generate(request, timeout=90)


def shut(worker):
    """As when its time is over."""
    worker.late_door._expire()


async def tokens(call):
    return [token async for message in call for token in message.token_ids]


async def test_a_draining_worker_serves_what_comes_late_from_its_pod_and_nobody_else(pod):
    house, inside = pod
    draining = await house.drained_by(house.operate("Drain", timeout_seconds=60))
    assert "draining" in (await house.refusal(house.generate().read())).details()
    assert await tokens(generate(inside)) == [1, 2, 3]
    assert not draining.done(), "more may come"
    shut(house.front.worker)
    assert (await draining).remaining_requests == 0
    assert (await house.refusal(generate(inside).read())).code() is UNAVAILABLE


async def test_a_draining_ends_by_itself_once_nobody_can_come_any_more(pod):
    house, inside = pod
    house.front.worker.late_door.open_s = 0.05
    assert (await house.operate("Drain", timeout_seconds=60)).remaining_requests == 0
    assert "draining" in (await house.refusal(generate(inside).read())).details()


async def test_before_that_the_answer_to_drain_is_that_one_is_left(pod):
    house, _ = pod
    assert (await house.operate("Drain", timeout_seconds=0.05)).remaining_requests == 1
    assert (await house.operate("Drain", timeout_seconds=0.05)).remaining_requests == 1
    shut(house.front.worker)


async def test_where_no_pods_api_is_served_a_draining_waits_for_nobody(house):
    house.front.worker.late_door.open_s = 3600.0
    assert (await house.operate("Drain", timeout_seconds=0.05)).remaining_requests == 0


async def test_a_worker_that_is_told_to_end_serves_what_comes_late_from_its_pod(pod):
    house, inside = pod
    house.stop.set()
    await house.until_state(State.DRAINING)
    assert "shutting down" in (await house.refusal(house.generate().read())).details()
    assert await tokens(generate(inside)) == [1, 2, 3]
    shut(house.front.worker)
    assert await house.running == 0


@pytest.mark.parametrize(("method", "level"), [("PrepareSleep", 1), ("PrepareSleep", 3), ("Sleep", 2), ("Sleep", 3)])
async def test_a_sleep_serves_what_comes_late_from_its_pod_before_it_begins(pod, method, level):
    """A pool puts who is idle to sleep without a draining before it."""
    house, inside = pod
    sleeping = await house.drained_by(house.operate(method, level=level))
    assert "draining" in (await house.refusal(house.generate().read())).details()
    assert await tokens(generate(inside)) == [1, 2, 3]
    assert not sleeping.done(), "more may come"
    shut(house.front.worker)
    await sleeping
    assert (await house.refusal(generate(inside).read())).code() is UNAVAILABLE


async def test_a_sleep_that_follows_a_draining_at_once_leaves_the_door_open_for_its_time(pod):
    """Nothing runs is no sign that nothing comes."""
    house, inside = pod
    assert (await house.operate("Drain", timeout_seconds=0.05)).remaining_requests == 1
    sleeping = asyncio.create_task(house.operate("PrepareSleep", level=1, epoch=7))
    await until(lambda: house.front.worker.epoch == 7)
    assert await tokens(generate(inside)) == [1, 2, 3]
    shut(house.front.worker)
    assert (await sleeping).request_counter == 1


async def test_a_sleep_that_ends_requests_waits_for_nobody_and_lets_nobody_in(pod):
    house, inside = pod
    draining = await house.drained_by(house.operate("Drain", timeout_seconds=60))
    await house.operate("PrepareSleep", level=1, mode=control.DRAIN_MODE_ABORT)
    assert (await draining).remaining_requests == 0
    assert "draining" in (await house.refusal(generate(inside).read())).details()


async def test_a_door_that_would_be_open_longer_than_a_worker_may_drain_is_shut_by_then(open_house, tmp_path):
    """After the answer to PrepareSleep nobody is let in."""
    async with open_house(local_socket=str(tmp_path / "inference.sock"), drain_timeout_s=0.05) as house:
        house.front.worker.late_door.open_s = 3600.0
        await house.operate("PrepareSleep", level=1)
        assert house.front.worker.board.state is State.DRAINING
        assert repr(house.front.worker.late_door) == "LateDoor(shut)"


async def test_who_was_let_in_is_served_though_his_prompt_is_ready_only_once_the_door_is_shut(pod, monkeypatch):
    monkeypatch.setattr("dormouse_worker.front.text.turns.TINY_BYTES", 0)  # tiny ones wait for no thread
    house, inside = pod
    worker, over = house.front.worker, threading.Event()
    for _ in range(NUM_THREADS):
        house.front._threads.submit(over.wait)
    draining = await house.drained_by(house.operate("Drain", timeout_seconds=60))
    late = asyncio.create_task(tokens(generate(inside, text="abc")))
    await until(lambda: len(worker.requests))
    shut(worker)
    over.set()
    assert len(await late) == 3
    assert (await draining).remaining_requests == 0


async def test_its_pod_hears_that_it_drains_once_it_takes_nothing_from_there_either(pod):
    house, inside = pod
    loads = [stub.WatchLoad(WATCH, timeout=90) for stub in (inside, house.inference)]
    assert [(await load.read()).ready for load in loads] == [True, True]
    draining = await house.drained_by(house.operate("Drain", timeout_seconds=60))
    loads.append(inside.WatchLoad(WATCH, timeout=90))
    told = [await load.read() for load in loads[1:]]
    assert [(load.ready, load.draining) for load in told] == [(False, True), (True, False)]
    shut(house.front.worker)
    told = [await loads[0].read(), await loads[2].read()]
    assert [(load.ready, load.draining) for load in told] == [(False, True), (False, True)]
    await draining
    for load in loads:
        load.cancel()


@pytest.fixture
async def url(pod):
    """The HTTP API of the pod; it has heard that the worker serves."""
    house, _ = pod
    door = make_door(Flags(("tiny",), 0, (house.front.worker.settings.local_socket, 0), LetIn(fails_open=True)))
    listener = listen("127.0.0.1", 0)
    await door.start(listener)
    await door.ready.wait()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1/completions"
    await door.stop()


async def test_the_pods_http_api_passes_on_what_comes_late_and_nothing_later(pod, url):
    house, _ = pod
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 3}
    draining = await house.drained_by(house.operate("Drain", timeout_seconds=60))
    async with aiohttp.ClientSession() as session:
        async with session.post(url, json=body) as response:
            assert response.status == 200, await response.text()
        shut(house.front.worker)
        await draining
        async with session.post(url, json=body) as response:
            assert response.status == 503
