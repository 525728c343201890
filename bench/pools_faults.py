"""What a pool's switches do to devices and calls while processes are killed: real workers, a real API server.

Six members share two stand-in GPUs, each with room for one, and four clients call them all the time. In each phase of a
slot (Yielding, Granting, Held) fronts, engines and whole workers of who leaves and who comes, fronts of sleepers, the
operator and the gateway are ended with SIGKILL, each --count times, in an order of --seed's; a kill takes some four
seconds. The devices' books say whether two were ever awake on one, and whether anybody had more than it may; all
answers must have the same tokens, and only what a killed gateway ended may be asked again.

In namespaces of its own, as root. The rows stand in pools.json; with --merge they count what stands there, too, so that
many short campaigns of different seeds make a long one.
"""

from __future__ import annotations

from rich.console import Console

from bench.ladder import enter
from bench.merge import recorded
from bench.options import Options, main
from bench.results import Row
from bench.slots.findings import Campaign, campaign_rows, together
from bench.slots.world import ROOT

ROUNDS = 2


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    enter.check()
    count = options.count or ROUNDS
    found = enter.run_inside(Campaign, console, "bench.slots.inside", ROOT, "campaign", count, options.seed)
    before = recorded("pools", options.results_dir) if options.merge and options.results_dir else {}
    return together(campaign_rows(found), before)


if __name__ == "__main__":
    main("pools", __doc__, measure)
