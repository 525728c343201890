"""How long a request waits for a slot that another model has: real workers on stand-in GPUs, a real API server.

Two members of a pool with one slot are asked in turns, each time while the other one is awake and idle. Everything is
in the way: the gateway, the operator, its writes to the API server, the grants. The nodes are KWOK's, in namespaces of
their own (so it must run as root). The model is small, so its copy takes next to nothing of the figure: how fast large
copies are is measured by `bench.switch`. --count is the number of switches; the rows stand in pools.json.
"""

from __future__ import annotations

from rich.console import Console

from bench.ladder import enter
from bench.options import Options, main
from bench.results import Row
from bench.slots.findings import Switch, switch_rows
from bench.slots.world import ROOT

NUM_SWITCHES = 60


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    enter.check()
    count = options.count or NUM_SWITCHES
    return switch_rows(enter.run_inside(list[Switch], console, "bench.slots.inside", ROOT, "switches", count))


if __name__ == "__main__":
    main("pools", __doc__, measure)
