"""The benchmarks of pools inside their sandbox: `python -m bench.slots.inside PART OUT NUMBER…`. Run by `enter`.

Writes what it found to OUT as JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from bench.ladder.inside import run_here
from bench.slots.switches import switches
from bench.slots.world import ROOT, running_world
from localkube.progress import Progress
from localkube.spec import Paths


async def _switches(progress: Progress, samples: int) -> Any:
    async with running_world(progress) as world:
        return await switches(world, samples)


PARTS = {"switches": _switches}


def main(argv: Sequence[str]) -> None:
    """Run one part."""

    async def run(progress: Progress, part: str, numbers: Sequence[int]) -> Any:
        return await PARTS[part](progress, *numbers)

    run_here(argv, run, Paths(ROOT).logs)


if __name__ == "__main__":
    main(sys.argv[1:])
