"""The benchmarks of pools inside their sandbox: `python -m bench.slots.inside PART OUT NUMBER…`. Run by `enter`.

Writes what it found to OUT as JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bench.fleet.kwok_stages import PODS_PER_NODE
from bench.ladder.inside import run_here
from bench.slots.campaign import campaign
from bench.slots.placing import num_nodes, place
from bench.slots.switches import switches
from bench.slots.world import ROOT, running_world
from localkube.progress import Progress
from localkube.spec import Paths


async def _switches(progress: Progress, samples: int) -> Any:
    async with running_world(progress) as world:
        return await switches(world, samples)


async def _campaign(progress: Progress, rounds: int, seed: int) -> Any:
    async with running_world(progress) as world:
        return await campaign(world, rounds, seed)


async def _placing(progress: Progress, num_pools: int) -> Any:
    pods = num_nodes(num_pools) * PODS_PER_NODE
    async with running_world(progress, workers="bench.fleet.fake_workers", num_pods=pods) as world:
        return await place(world, num_pools)


PARTS: dict[str, Callable[..., Awaitable[Any]]] = {"switches": _switches, "placing": _placing, "campaign": _campaign}


def main(argv: Sequence[str]) -> None:
    """Run one part."""

    async def run(progress: Progress, part: str, numbers: Sequence[int]) -> Any:
        return await PARTS[part](progress, *numbers)

    run_here(argv, run, Paths(ROOT).logs)


if __name__ == "__main__":
    main(sys.argv[1:])
