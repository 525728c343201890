"""A gateway with one talking worker in a thread of its own, for clients that block."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dormouse_gateway.openai.testing import TalkingWorker
from dormouse_gateway.testing.slices import ControlledKube
from tests.gateway.conftest import running_house


@contextmanager
def running_in_thread() -> Iterator[str]:
    """Serve the model tiny; yield the address of the HTTP API."""
    told: list = []
    is_told = threading.Event()

    async def serve():
        worker, done = TalkingWorker(name="talker"), asyncio.Event()
        await worker.start()
        async with running_house(ControlledKube()) as house:
            await house.add("tiny", [worker])
            told.extend((asyncio.get_running_loop(), done, house.ports.openai))
            is_told.set()
            await done.wait()
        await worker.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert is_told.wait(90)
    loop, done, port = told
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
