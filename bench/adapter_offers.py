"""Hundreds of InferenceAdapters of one base: what the operator takes until each is loaded on every worker.

The operator as one process over a cluster and workers in memory, which load at once; time is the processor's, with that
of the cluster in memory. Written are the statuses of the base and of each InferenceAdapter.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

from rich.console import Console

from bench.options import Options, main
from bench.results import AtMost, Row
from dormouse_api.testing_tickets import GATEWAY_SEED, OPERATOR_SEED
from dormouse_kube.api import INFERENCE_ADAPTERS, INFERENCE_DEPLOYMENTS, LEASES
from dormouse_kube.testing import FakeKube
from dormouse_operator.app import App
from dormouse_operator.lead.election import Leadership
from dormouse_operator.metrics import Metrics
from dormouse_operator.model import WorkerState
from dormouse_operator.seeds import Seeds
from dormouse_operator.settings import parse_settings
from dormouse_operator.testing.feed import FakeWatch
from dormouse_operator.testing.kube import FakeNode
from dormouse_operator.testing.workers import FakeWorkers

NUM_ADAPTERS, NUM_WORKERS, NUM_SLOTS = 500, 4, 16
NAMESPACE, BASE = "team", "base"
LIMIT_S, POLL_S = 120.0, 0.02


class Fleet:
    """An operator over a cluster and workers in memory."""

    def __init__(self, num_adapters: int) -> None:
        self._num_adapters = num_adapters
        settings = parse_settings({"DORMOUSE_NAMESPACE": "system", "DORMOUSE_TOKENS_DIR": "/none"})
        self.kube, self.workers = FakeKube(), FakeWorkers()
        self.node = FakeNode(self.kube, self.workers, lambda: datetime.now(UTC))
        lease = {"namespace": "system", "name": settings.lease_name}
        self.kube.put(LEASES, {"metadata": lease, "spec": {"holderIdentity": "", "leaseTransitions": 0}})
        leader = Leadership(
            self.kube,
            namespace="system",
            name=settings.lease_name,
            pod_uid=settings.pod_uid,
            clock=lambda: datetime.now(UTC),
        )
        self.app = App(
            self.kube,
            self.workers,
            leader,
            settings=settings,
            seeds=Seeds((OPERATOR_SEED,), (GATEWAY_SEED,)),
            metrics=Metrics(),
            watch=FakeWatch(self.kube),
        )

    def deploy(self) -> None:
        """Create the base."""
        engine = {
            "device": "cpu",
            "enableLora": True,
            "maxLoras": NUM_SLOTS,
            "maxCpuLoras": max(self._num_adapters, NUM_SLOTS),
        }
        spec = {"model": {"uri": "file:///base"}, "replicas": NUM_WORKERS, "engine": engine}
        self.kube.put(INFERENCE_DEPLOYMENTS, {"metadata": {"namespace": NAMESPACE, "name": BASE}, "spec": spec})

    def offer(self) -> None:
        """Create all InferenceAdapters at once."""
        for number in range(self._num_adapters):
            metadata = {"namespace": NAMESPACE, "name": f"adapter-{number:03}"}
            spec = {"base": BASE, "uri": f"file:///adapters/{number}"}
            self.kube.put(INFERENCE_ADAPTERS, {"metadata": metadata, "spec": spec})

    def num_ready(self) -> int:
        """Return the workers that serve."""
        status = (self.kube.peek(INFERENCE_DEPLOYMENTS, NAMESPACE, BASE) or {}).get("status") or {}
        return int(status.get("readyReplicas") or 0)

    def num_loaded(self) -> int:
        """Return the InferenceAdapters that every worker has, as their own statuses say."""
        told = (obj.get("status") or {} for obj in self.kube.everything(INFERENCE_ADAPTERS))
        return sum(each.get("state") == "Loaded" and each["loadedReplicas"] == NUM_WORKERS for each in told)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Let node and workers go on until something holds."""
        async with asyncio.timeout(LIMIT_S):
            while not is_so():
                self.node.tick()
                for worker in self.workers.workers.values():
                    if worker.state is WorkerState.LOADING:
                        worker.finish_loading()
                await asyncio.sleep(POLL_S)


async def bring_up(num_adapters: int = NUM_ADAPTERS) -> tuple[float, int]:
    """Return the processor's seconds until all are loaded, and how many writes that took."""
    fleet, stop = Fleet(num_adapters), asyncio.Event()
    running = asyncio.create_task(fleet.app.run(stop))
    fleet.deploy()
    await fleet.until(lambda: fleet.num_ready() == NUM_WORKERS)
    before, begun_s = len(fleet.kube.calls), time.process_time()
    fleet.offer()
    await fleet.until(lambda: fleet.num_loaded() == num_adapters)
    seconds = time.process_time() - begun_s
    writes = sum(call.verb in {"patch_status", "create"} for call in fleet.kube.calls[before:])
    stop.set()
    await running
    return seconds, writes


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    runs = sorted(asyncio.run(bring_up()) for _ in range(options.reps))
    seconds, writes = runs[len(runs) // 2]
    console.print(f"  {seconds:.2f} s of the processor, {writes} writes", highlight=False)
    what = f"{NUM_ADAPTERS} InferenceAdapters on {NUM_WORKERS} workers"
    return [
        Row(f"{what}: applied to loaded", seconds, "cpu s", goal=AtMost(10)),
        Row(f"{what}: writes for each", writes / NUM_ADAPTERS, "writes", goal=AtMost(6)),
    ]


if __name__ == "__main__":
    main("adapter_offers", __doc__, measure)
