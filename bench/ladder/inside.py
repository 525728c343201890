"""The ladder's benchmark inside its sandbox: `python -m bench.ladder.inside PART OUT NUMBER…`. Run by `enter`.

Writes what it found to OUT as JSON.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.fleet.sandbox import SandboxError, bring_up_network
from bench.fleet.tracker import FleetError
from bench.ladder import parts
from bench.ladder.findings import ColdStarts
from bench.ladder.world import World, log_folder, running_world
from bench.options import end_children_on_sigterm, make_console
from dormouse_kube.errors import KubeError
from localkube.errors import LocalkubeError
from localkube.progress import Progress


async def _held(world: World, count: int, reps: int) -> Any:
    return await parts.held(world, count, reps)


async def _coldstart(world: World, samples: int) -> Any:
    found = await parts.wakes(world, samples)
    starts = await parts.zero(world)
    return ColdStarts(tuple(found), tuple(starts), tuple(await parts.night(world)))


Part = Callable[..., Awaitable[Any]]
PARTS: dict[str, Part] = {"held": _held, "coldstart": _coldstart}


def main(argv: Sequence[str]) -> None:
    """Run one part of the ladder's."""

    async def run(progress: Progress, part: str, numbers: Sequence[int]) -> Any:
        async with running_world(progress) as world:
            return await PARTS[part](world, *numbers)

    run_here(argv, run, log_folder())


def run_here(
    argv: Sequence[str], run: Callable[[Progress, str, Sequence[int]], Coroutine[Any, Any, Any]], logs: Path
) -> None:
    """Run one part in this sandbox; everything that it started ends with this process."""
    end_children_on_sigterm()
    part, out, numbers = argv[0], Path(argv[1]), [int(number) for number in argv[2:]]
    console = make_console()
    progress = Progress(write=lambda line: console.print("  " + line, markup=False, highlight=False))
    try:
        bring_up_network(os.environ)
        out.write_bytes(msgspec.json.encode(asyncio.run(run(progress, part, numbers))))
    except* (SandboxError, LocalkubeError, FleetError, KubeError, ValueError) as group:
        sys.exit("; ".join(str(error) for error in _leaves(group)) + f"\nlogs: {logs}")


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


if __name__ == "__main__":
    main(sys.argv[1:])
