"""Whatever raises while a request waits, it leaves the line, and its place at a worker goes back."""

import asyncio

from tests.gateway.hold.world import READY, TINY, World, ended, settled


async def test_a_callback_that_raises_as_a_request_comes_leaves_nobody_in_line(monkeypatch):
    world = World(max_num_seqs=1)
    with monkeypatch.context() as broken:
        broken.setattr(world.holder, "_settle", lambda _: 1 / 0)
        task = world.ask("first")
        await asyncio.wait({task})
    assert isinstance(task.exception(), ZeroDivisionError)
    assert world.holder._queue.count(TINY) == 0
    world.check()
    world.tell(READY)
    second = world.ask("second")
    await settled()
    assert world.got == ["second"], "the place that nobody took went back"
    await ended(second)
    assert world.outstanding() == 0
