"""`make e2e-ladder`: everything that may not lose a request, on the local cluster, under an open-loop prober.

Prints a report, writes the raw records to tests/records/ladder.json.gz and the rows to bench/results/gateway.json.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from rich.console import Console

from bench.merge import merge_results
from bench.results import Row, print_table
from tests.prober import records, references, scenarios, summary
from tests.prober.probe import Door, Manner, Prober
from tests.prober.scenarios import ALONE, BESIDE, STEADY, Scenario, Stage
from tests.prober.world import open_world
from tools.bootstrap import ROOT
from tools.kubectl import Cluster, CommandFailed
from tools.release import Release, fill_model_claim, install
from tools.train_model import Recipe, model_dir

RECORD = ROOT / "tests" / "records" / "ladder.json.gz"
CLAIM = ROOT / "examples" / "demo" / "models-claim.yaml"
NUM_DOORS = 8
STARTED = time.monotonic()


def main() -> None:
    """Run it; end with 1 if a goal is missed."""
    arguments = _arguments()
    logging.getLogger("dormouse_kube").setLevel(logging.ERROR)  # the API server goes away by our own hand
    try:
        cluster = Cluster.current()
        if not cluster.local:
            sys.exit("DORMOUSE_CONTEXT is set: processes can be killed on the local cluster only")
        is_good = asyncio.run(run(cluster, arguments))
    except CommandFailed as error:
        sys.exit(str(error))
    except asyncio.CancelledError:
        sys.exit("ended by a signal")
    sys.exit(0 if is_good else 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.prober", description=__doc__)
    parser.add_argument("--seed", type=int, default=20, help="of loads, prompts and moments (default 20)")
    parser.add_argument("--cycles", type=int, default=50, help="how often models go to no pod and back (default 50)")
    names = [scenario.__name__ for scenario in (*ALONE, *BESIDE)]
    parser.add_argument("--only", choices=names, nargs="+", help="run these and the ladder alone; write nothing")
    return parser.parse_args()


async def run(cluster: Cluster, arguments: argparse.Namespace) -> bool:
    """Make a release, run all scenarios, report; return whether all goals are reached."""
    console = Console(width=max(160, Console().width))
    end_in_order_at_sigterm()
    model = model_dir(Recipe())
    async with own_release(cluster, model) as release, open_world(cluster, release) as world:
        say("the release is installed")
        greedy, _ = await asyncio.gather(
            asyncio.to_thread(references.greedy_cases, model), scenarios.make_deployments(world)
        )
        say("the models serve")
        async with doors(await world.gateway_address()) as ways:
            prompts = [case.question.prompt for case in greedy]
            recorded = await references.recorded_cases(ways[0].stub, STEADY, prompts, seed=arguments.seed)
            say(f"{len(greedy)} answers of transformers, {len(recorded)} of the quiet cluster")
            stage = Stage(world, Prober([*greedy, *recorded]), Manner(ways), arguments.seed)
            try:
                await perform(stage, arguments.cycles, arguments.only)
            finally:
                await stage.prober.settle()
                summary.print_lines(summary.lines_of(stage.prober.records), console)
                for sentence in summary.failures(stage.prober.records):
                    print(sentence)
    return report(stage, console, is_whole=arguments.only is None)


async def perform(stage: Stage, cycles: int, only: Sequence[str] | None) -> None:
    """Run the scenarios in order: those that are timed alone, then all others beside the ladder."""
    await one_by_one(stage, ALONE, only)
    async with asyncio.TaskGroup() as tasks:
        climbing = tasks.create_task(scenarios.climb_all(stage, cycles))
        await one_by_one(stage, BESIDE, only)
        async with stage.load("beside the ladder", STEADY, scenarios.USUAL):
            await climbing
    await stage.prober.settle()
    say(f"climb_all: {stage.prober!r}, {stage.cycles} cycles")


async def one_by_one(stage: Stage, chosen: Sequence[Scenario], only: Sequence[str] | None) -> None:
    """Run scenarios, of these only the named ones, and say when each is over."""
    for scenario in chosen:
        if only is None or scenario.__name__ in only:
            await scenario(stage)
            say(f"{scenario.__name__}: {stage.prober!r}, {stage.cycles} cycles")


def report(stage: Stage, console: Console, *, is_whole: bool) -> bool:
    """Print the rows, and write them with the records if all scenarios were run; return whether nothing is amiss."""
    rows, is_complete = rows_of(stage)
    print_table(rows, console)
    if is_whole:
        notes = {"cycles": stage.cycles, "seconds": stage.notes, "killed_gateway": stage.killed_gateway}
        size = records.write(RECORD, stage.prober.records, seed=stage.seed, notes=notes)
        say(f"{RECORD.relative_to(ROOT)}: {len(stage.prober.records):,} records in {size:,} bytes")
        merge_results("gateway", rows)
    return all(row.holds for row in rows) and (is_complete if is_whole else not summary.failures(stage.prober.records))


def rows_of(stage: Stage) -> tuple[list[Row], bool]:
    """Return the rows of the goals, and whether none is missing; why one is missing is printed."""
    prober, rows, is_complete = stage.prober, [], True
    for make in (
        lambda: [summary.lost_row(prober.records)],
        lambda: summary.worker_kill_rows(prober.of(summary.WORKER_KILL), stage.kill_streams),
        lambda: summary.gateway_kill_rows(prober.of(summary.GATEWAY_KILL), stage.killed_gateway),
    ):
        try:
            rows.extend(make())
        except summary.TooFew as error:
            is_complete = False
            print(error)
    return rows, is_complete


@asynccontextmanager
async def doors(address: str) -> AsyncIterator[list[Door]]:
    """Open connections through the Service: each goes to one of the gateways, and to another when that ends."""
    async with AsyncExitStack() as stack:
        opened = [Door(f"service-{index}", address) for index in range(NUM_DOORS)]
        for door in opened:
            stack.push_async_callback(door.close)
        yield opened


@asynccontextmanager
async def own_release(cluster: Cluster, model: Path) -> AsyncIterator[Release]:
    """Install a release of this run's own with the model on a volume, and remove it afterwards."""
    name = f"ladder-{secrets.token_hex(3)}"
    release = Release(name=name, namespace=f"{name}-system", watch_namespaces=(name,))
    try:
        await asyncio.to_thread(install, cluster, release)
        await asyncio.to_thread(fill_model_claim, cluster, namespace=name, claim_manifest=CLAIM, model=model)
        yield release
    finally:
        await asyncio.to_thread(_remove, cluster, release)


def _remove(cluster: Cluster, release: Release) -> None:
    for namespace in release.watch_namespaces:
        cluster.kubectl("delete", "namespace", namespace, "--ignore-not-found")
    with suppress(CommandFailed):
        cluster.helm("uninstall", release.name, "--namespace", release.namespace, "--wait")
    cluster.kubectl("delete", "namespace", release.namespace, "--ignore-not-found", "--wait=false")


def end_in_order_at_sigterm() -> None:
    """Have SIGTERM do what Ctrl-C does: the API server comes back and the release goes."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def say(text: str) -> None:
    """Print one line of progress with the seconds since the start."""
    print(f"[ladder] {time.monotonic() - STARTED:6.1f} s  {text}", flush=True)


if __name__ == "__main__":
    main()
