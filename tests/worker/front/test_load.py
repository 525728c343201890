"""WatchLoad: what a gateway hears of a worker's load."""

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.ipc import AddRequest


def is_add(message):
    return isinstance(message, AddRequest)


async def test_the_load_is_streamed_on_change(house):
    watch = house.inference.WatchLoad(pb.WatchLoadRequest(), timeout=90)
    load = await watch.read()
    assert (load.ready, load.draining, load.running_requests) == (True, False, 0)
    house.engine.is_paused = True
    call = house.generate([1, 2], max_tokens=9)
    await house.engine.until_received(is_add)
    house.engine.step()
    assert (await watch.read()).running_requests == 1
    call.cancel()
    watch.cancel()


async def test_the_load_tells_that_a_worker_drains_and_opens_again(house):
    watch = house.inference.WatchLoad(pb.WatchLoadRequest(), timeout=90)
    doors = [await watch.read()]
    house.front.worker.start_draining()
    doors.append(await watch.read())
    house.front.worker.reopen()
    doors.append(await watch.read())
    watch.cancel()
    assert [(load.ready, load.draining) for load in doors] == [(True, False), (False, True), (True, False)]


async def test_the_load_of_a_worker_that_is_not_ready_is_none_and_it_says_so_when_it_is(open_house):
    async with open_house(ready=False) as house:
        watch = house.inference.WatchLoad(pb.WatchLoadRequest(), timeout=90)
        load = await watch.read()
        assert (load.ready, load.draining, load.running_requests, load.kv_cache_usage) == (False, False, 0, 0.0)
        await house.make_ready()
        assert (await watch.read()).ready
        watch.cancel()
