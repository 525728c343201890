"""The benchmark inside its sandbox: starts the fleet, runs the parts, prints and writes the rows."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

from bench.fleet import kwok_build, measure
from bench.fleet.audit import AuditLog
from bench.fleet.cluster import Cluster
from bench.fleet.deployments import Deployments
from bench.fleet.figures import Burst, burst_rows, change_rows, handover_rows, ready_rows, rest_rows, start_row
from bench.fleet.measure import Fleet
from bench.fleet.options import FleetOptions, parse_options
from bench.fleet.picture import draw
from bench.fleet.sandbox import SandboxError, bring_up_network
from bench.fleet.tracker import FleetError, tracking
from bench.options import end_children_on_sigterm, make_console
from bench.results import Row, print_table, write_results
from dormouse_kube.client import KubeClient
from dormouse_kube.errors import KubeError
from localkube import build
from localkube.errors import LocalkubeError
from localkube.progress import Progress
from localkube.spec import Paths
from tools.bootstrap import cache_root

NAME = "operator"  # of the result
ROOT = cache_root() / "bench-operator"


def main() -> None:
    """Run the benchmark; everything that it started ends with this process."""
    end_children_on_sigterm()
    options, console = parse_options(__doc__), make_console()
    progress = Progress(write=lambda line: console.print(line.replace("localkube", "fleet", 1), markup=False))
    try:
        bring_up_network(os.environ)
        rows = asyncio.run(_measure(options, progress))
    except* (SandboxError, LocalkubeError, FleetError, KubeError) as group:
        sys.exit("; ".join(str(error) for error in _leaves(group)) + f"\nlogs: {Paths(ROOT).logs}")
    print_table(rows, console)
    if options.results_dir is not None:
        console.print(f"written to {write_results(NAME, rows, options.results_dir)}", style="dim")


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


async def _measure(options: FleetOptions, progress: Progress) -> list[Row]:
    """Start the fleet, run the wanted parts, return their rows."""
    paths = Paths(ROOT)
    binaries = build.build(Paths(cache_root() / "localkube"), progress)
    cluster = Cluster(paths, binaries, kwok_build.build(ROOT, progress.say))
    cluster.start(options.population + 2 * options.samples, progress)
    async with (
        await KubeClient.connect(kubeconfig=str(paths.pki / "admin.conf")) as kube,
        tracking(kube) as tracker,
    ):
        fleet = Fleet(cluster, kube, tracker, Deployments(kube), AuditLog(paths.audit_log), progress.say)
        fleet.start_operator()
        await fleet.until_leader([fleet.operator.name])
        return await _run_parts(fleet, options)


async def _run_parts(fleet: Fleet, options: FleetOptions) -> list[Row]:
    """Run the parts in their one order; each leaves all deployments Ready."""
    found = await measure.burst(fleet, options.count)
    fleet.say(str(found))
    _draw(found, options)
    rows = burst_rows(found) if "burst" in options.only else []
    await measure.populate(fleet, options.population)
    for name, part in _PARTS.items():
        if name in options.only:
            fleet.say(f"part {name}")
            rows += await part(fleet, options)
    return rows


async def _rest(fleet: Fleet, _: FleetOptions) -> list[Row]:
    found = await measure.rest(fleet)
    fleet.say(str(found))
    return rest_rows(found)


async def _change(fleet: Fleet, options: FleetOptions) -> list[Row]:
    count = len(fleet.population)
    return change_rows(count, await measure.changes(fleet, options.samples))


async def _ready(fleet: Fleet, options: FleetOptions) -> list[Row]:
    count = len(fleet.population)
    return ready_rows(count, *await measure.additions(fleet, options.samples))


async def _start(fleet: Fleet, _: FleetOptions) -> list[Row]:
    return [start_row(len(fleet.population), await measure.start(fleet))]


async def _failover(fleet: Fleet, _: FleetOptions) -> list[Row]:
    killed = await measure.handovers(fleet, is_graceful=False)
    return handover_rows(killed, await measure.handovers(fleet, is_graceful=True))


Part = Callable[[Fleet, FleetOptions], Awaitable[list[Row]]]
_PARTS: dict[str, Part] = {"rest": _rest, "change": _change, "ready": _ready, "start": _start, "failover": _failover}


def _draw(found: Burst, options: FleetOptions) -> None:
    if options.results_dir is None:
        return
    options.results_dir.mkdir(parents=True, exist_ok=True)
    title = f"{found.count:,} InferenceDeployments applied at once: how many got how far"
    curves = {"applied": found.applied_s, "pod Ready": found.pods_ready_s, "deployment Ready": found.ready_s}
    (options.results_dir / f"{NAME}.svg").write_text(draw(title, curves), "utf-8")


if __name__ == "__main__":
    main()
