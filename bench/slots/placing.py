"""Many pools and their members at once, on fake nodes that offer GPUs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from bench.fleet.audit import AuditLog
from bench.slots.findings import Placing
from bench.slots.world import World, member_manifest
from dormouse_kube.api import INFERENCE_DEPLOYMENTS
from localkube.gpus.objects import MAX_GPUS

MEMBERS_PER_POOL, SLOTS_PER_POOL = 8, 2
PLACED_WITHIN_S = 500.0
AT_ONCE = 32  # requests on their way at the same time


def num_nodes(num_pools: int) -> int:
    """Return how many nodes have GPUs for so many pools."""
    return -(-num_pools * SLOTS_PER_POOL // MAX_GPUS)


async def place(world: World, num_pools: int) -> Placing:
    """Apply them all, and wait until each member rests on a slot that has its device."""
    await world.publish(MAX_GPUS, "80Gi", [f"fake-{number}" for number in range(num_nodes(num_pools))])
    members = {f"m{number:04d}": f"pool-{number // MEMBERS_PER_POOL}" for number in range(num_pools * MEMBERS_PER_POOL)}
    audit = AuditLog(world.cluster.paths.audit_log)
    cpu_s, begin_s, turns = world.operator.cpu_s, time.monotonic(), asyncio.Semaphore(AT_ONCE)

    async def add(name: str, pool: str) -> None:
        async with turns:
            await world.kube.create(INFERENCE_DEPLOYMENTS, member_manifest(name, Path("/models/tiny"), pool))

    pools = (world.add_pool(SLOTS_PER_POOL, name=pool) for pool in sorted(set(members.values())))
    await asyncio.gather(*pools, *(add(name, pool) for name, pool in members.items()))
    applied_s = time.monotonic() - begin_s
    await world.until("all to be placed", lambda: _is_placed(world, members), timeout_s=PLACED_WITHIN_S)
    placed_s = time.monotonic() - begin_s
    found = Placing(
        num_pools=num_pools,
        num_members=len(members),
        applied_s=applied_s,
        placed_s=placed_s,
        writes=dict(audit.read()),
        resident_bytes=world.operator.resident_bytes,
        cpu_s=world.operator.cpu_s - cpu_s,
    )
    world.say(str(found))
    return found


def _is_placed(world: World, members: dict[str, str]) -> bool:
    """Return whether every member rests and every slot of every pool has its device."""
    slots = [slot for pool in set(members.values()) for slot in world.seen.pools.get(pool, {}).get("slots", ())]
    has_devices = len(slots) == SLOTS_PER_POOL * len(set(members.values())) and all(map(_has_device, slots))
    return has_devices and all(map(world.rests, members))


def _has_device(slot: dict[str, object]) -> bool:
    return bool(slot.get("devices"))
