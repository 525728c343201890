"""One slot, two members: ask them in turns, and take apart what each request waited for."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.models import ensure_model
from bench.slots.findings import Switch
from bench.slots.world import World

MEMBERS = ("dusk", "dawn")
QUIET_S = 0.5  # between two requests
WARM_UP = 4  # the first starts of both engines, and one wake of each


async def switches(world: World, samples: int) -> list[Switch]:
    """Have the slot change hands so often."""
    await prepare(world, ensure_model("tiny"), MEMBERS, num_gpus=1)
    found = [
        await _switch(world, MEMBERS[number % 2], MEMBERS[(number + 1) % 2]) for number in range(samples + WARM_UP)
    ]
    return found[WARM_UP:]


async def prepare(world: World, model: Path, members: tuple[str, ...], *, num_gpus: int) -> None:
    """Offer GPUs of 512 MiB, and make a pool with members that all rest."""
    await world.offer(num_gpus, "512Mi", 512 << 20)
    policy = {"minActiveSeconds": 1, "patienceSeconds": 0}
    await world.add_pool(num_gpus, maxMembersPerSlot=8, sleeperReserve="16Mi", policy=policy)
    await world.add_members(members, model)


async def _switch(world: World, called: str, holder: str) -> Switch:
    """Ask the member that sleeps while the other one holds the slot and has nothing to do."""
    await asyncio.sleep(QUIET_S)
    answer = await world.client.ask(called)
    if answer.error:
        raise ValueError(f"a request to {called} ended with {answer.error}")
    await world.until(f"{called} to hold the slot", lambda: world.seen.holders() == [called])
    woken, slept = await world.status_of(called), await world.status_of(holder)
    found = Switch(
        total_s=answer.first_s - answer.asked_s,
        sleep_s=slept.last_sleep_s,
        wake_s=woken.last_wake_s,
        start=answer.start,
    )
    world.say(str(found))
    return found
