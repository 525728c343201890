"""A pool in the operator as one process: watches, streams and orders wake each other, and nobody steps it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from dormouse_kube.api import GPU_POOLS, INFERENCE_DEPLOYMENTS, PODS
from dormouse_kube.testing import FakeKube
from dormouse_operator.metrics import Metrics
from dormouse_operator.model import Key, PoolKey, WorkerState
from dormouse_operator.testing.gateways import FakeGateways
from dormouse_operator.testing.kube import FakeNode
from dormouse_operator.testing.pooled import PooledWorkers
from tests.operator_.test_app import app_over
from tests.waiting import until

POOL = {
    "metadata": {"namespace": "team", "name": "gpus"},
    "spec": {"slots": 1, "device": {"claim": {"deviceClassName": "gpu.example.com"}}},
}


def member(name):
    spec = {"model": {"uri": "file:///x"}, "engine": {"device": "cuda"}, "gpu": {"pool": {"name": "gpus"}}}
    return {"metadata": {"namespace": "team", "name": name}, "spec": spec}


class Town:
    """The cluster around a running operator."""

    def __init__(self):
        self.kube, self.workers, self.metrics = FakeKube(), PooledWorkers(), Metrics()
        self.node = FakeNode(self.kube, self.workers, lambda: datetime.now(UTC))
        self.gateways = FakeGateways(asyncio.get_running_loop().time, found={"a:1"})
        self.kube.put(GPU_POOLS, POOL)
        for name in ("a", "b"):
            self.kube.put(INFERENCE_DEPLOYMENTS, member(name))
        self.app = app_over(self.kube, self.metrics, gateways=self.gateways, workers=self.workers)

    def worker(self, name):
        for pod in self.kube.everything(PODS):
            if pod["metadata"]["name"].startswith(f"{name}-") and pod.get("status", {}).get("podIP"):
                return self.node.worker_of(pod["metadata"]["name"])
        return None

    def status(self):
        return self.kube.peek(GPU_POOLS, "team", "gpus")["status"]

    def tell(self, called):
        for name in ("a", "b"):
            count = int(name == called)
            self.gateways.tell("a:1", Key("team", name), held=count, in_flight=count)

    async def until(self, name, state):
        """Let the node go on until a worker is in a state."""

        def holds():
            self.node.tick()
            for worker in self.workers.workers.values():
                if worker.state is WorkerState.LOADING:
                    worker.finish_loading()
            found = self.worker(name)
            return found and found.state is state

        await until(holds)


@pytest.fixture
async def town():
    town, stop = Town(), asyncio.Event()
    running = asyncio.create_task(town.app.run(stop))
    yield town
    stop.set()
    await running


async def test_a_request_that_gateways_tell_of_wakes_its_model_and_the_next_one_takes_the_slot_over(town):
    await town.until("a", WorkerState.STANDBY)
    await town.until("b", WorkerState.STANDBY)
    await until(lambda: "a:1" in town.gateways.listeners)
    for called, other in (("a", "b"), ("b", "a"), ("a", "b")):
        town.tell(called)
        await town.until(called, WorkerState.READY)
        assert town.worker(other).state in {WorkerState.STANDBY, WorkerState.ASLEEP}
    assert town.node.devices["gpus-0"].most_seen == 1
    pool = 'namespace="team",pool="gpus"'
    await until(lambda: f"dormouse_pool_switches_total{{{pool}}} 3.0" in town.metrics.render().decode())
    assert 'dormouse_pool_slots{namespace="team",phase="Held",pool="gpus"} 1.0' in town.metrics.render().decode()


async def test_a_holder_whose_last_request_ended_gives_its_slot_up_at_once_though_its_worker_tells_nobody(town):
    await town.until("a", WorkerState.STANDBY)
    await town.until("b", WorkerState.STANDBY)
    await until(lambda: "a:1" in town.gateways.listeners)
    town.tell("a")
    await town.until("a", WorkerState.READY)
    town.worker("a").running_requests = 1
    town.app.statuses.refresh(PoolKey("team", "gpus"))  # as after an order: it is seen with its request
    town.tell("b")
    await until(lambda: [found["name"] for found in town.status()["waiting"]] == ["b"])
    assert town.worker("a").state is WorkerState.READY, "its turn is 20 s"
    town.worker("a").running_requests = 0
    async with asyncio.timeout(90):
        await town.until("b", WorkerState.READY)


async def test_a_pool_that_is_gone_is_forgotten(town):
    await town.until("a", WorkerState.STANDBY)
    await until(lambda: 'pool="gpus"' in town.metrics.render().decode())
    town.kube.finish_deletion(GPU_POOLS, "team", "gpus")
    await until(lambda: 'pool="gpus"' not in town.metrics.render().decode())
    assert "0 pools" in repr(town.app.pools)
