"""Calls at the same time, and engines that die meanwhile: whoever holds memory of the device has a grant."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest
from grpc import aio

from dormouse_worker.front.app import Seams
from dormouse_worker.front.engine.grant import holds_memory

NUM_ROUNDS = 20


async def no_delay(_):
    """Let an engine that died start again at once, and nobody wait for the watchdog."""
    await asyncio.sleep(0)


class Chaos:
    """An operator that says anything at any time, and an engine that dies when it likes."""

    def __init__(self, house, seed):
        self.house = house
        self.random = random.Random(seed)
        self.slot_epoch = 0

    def next_epoch(self):
        self.slot_epoch += 1
        return self.slot_epoch

    async def call(self):
        """Make one call, or kill the engine."""
        calls = {
            "GrantDevice": {"slot": "pool-0", "slot_epoch": self.next_epoch()},
            "RevokeDevice": {"slot_epoch": self.next_epoch()},
            "PrepareWakeUp": {},
            "WakeUp": {},
            "InitializeCache": {"num_gpu_blocks": 40},
            "PrepareSleep": {"level": self.random.choice([1, 3])},
            "Sleep": {"level": self.random.choice([1, 2, 3])},
            "die": {},
        }
        name = self.random.choice(["GrantDevice", "WakeUp", *calls])
        if name == "die":
            self.house.engine.die(-9)
            return
        with contextlib.suppress(aio.AioRpcError):
            await self.house.operate(name, **calls[name])


def is_lawful(worker):
    """Return whether the worker has a grant, or nothing of the device but what a sleeper leaves there."""
    return worker.grants.standing.grant is not None or not worker.link.is_alive or not holds_memory(worker.board.engine)


@pytest.mark.parametrize("seed", range(6))
async def test_whoever_holds_memory_has_a_grant(open_house, seed):
    seams = Seams(sleep=no_delay, warms_templates=False)
    async with open_house(device_grants=True, ready=False, seams=seams, max_engine_restarts=10_000) as house:
        chaos, worker, outlaws = Chaos(house, seed), house.front.worker, []

        async def watch():
            while True:
                await worker.changes.wait()
                if not is_lawful(worker):
                    outlaws.append(repr(worker))

        watching = asyncio.create_task(watch())
        for _ in range(NUM_ROUNDS):
            await asyncio.gather(*(chaos.call() for _ in range(chaos.random.randint(1, 4))))
            assert is_lawful(worker)
        watching.cancel()
        assert outlaws == []
        await house.operate("Sleep", level=3)
        assert not worker.link.is_alive
        assert not (await house.operate("RevokeDevice", slot_epoch=chaos.next_epoch())).HasField("grant")
        assert all(engine._exit.done() for engine in house.engines if engine.is_spawned), "none was forgotten"
        await house.operate("GrantDevice", slot="pool-0", slot_epoch=chaos.next_epoch())
        await house.operate("WakeUp")
        await house.make_ready()
        assert await house.tokens() == [1, 2, 3, 1]
