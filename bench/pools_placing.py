"""How long many pools take from `kubectl apply` to pods with devices: a real API server and scheduler, fake nodes.

A hundred pools of two slots with eight members each are applied at once, in namespaces of their own (so it must run as
root). Nodes are KWOK's and publish ResourceSlices, so the scheduler allocates the slots' claims; workers answer over
the real protocol and wait in STANDBY. --count is the number of pools; the rows stand in pools.json.
"""

from __future__ import annotations

from rich.console import Console

from bench.ladder import enter
from bench.options import Options, main
from bench.results import Row
from bench.slots.findings import Placing, placing_rows
from bench.slots.world import ROOT

NUM_POOLS = 100


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    enter.check()
    count = options.count or NUM_POOLS
    return placing_rows(enter.run_inside(Placing, console, "bench.slots.inside", ROOT, "placing", count))


if __name__ == "__main__":
    main("pools", __doc__, measure)
