"""A whole gateway in this process: real ports, real workers, Kubernetes in memory."""

import asyncio
import random
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from grpc import aio

from dormouse_api.testing_tickets import ADDRESSES, GATEWAY_SEED
from dormouse_api.v1 import inference_pb2_grpc as rpc
from dormouse_gateway.call import UNTRACED
from dormouse_gateway.seeds import Seeds
from dormouse_gateway.server import Gateway, Ports
from dormouse_gateway.settings import Settings
from dormouse_gateway.testing.slices import ControlledKube
from dormouse_gateway.testing.workers import NAMESPACE, infd, pod, running_workers
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS
from dormouse_kube.reflector import ObjectKey
from dormouse_kube.testing import FakeKube
from tests.waiting import until


@dataclass
class House:
    """The gateway under test, and what is around it."""

    gateway: Gateway
    kube: FakeKube
    ports: Ports
    channel: aio.Channel
    stub: rpc.InferenceStub
    stop: asyncio.Event
    running: asyncio.Task
    until = staticmethod(until)

    async def add(self, name, workers, *, ready=True, hears=True, uid="", **spec):
        """Add a deployment with one pod per worker; wait until the gateway knows, and hears those that are ready."""
        self.kube.put(INFERENCE_DEPLOYMENTS, infd(name, **spec))
        for worker in workers:
            if not ready:
                worker.tell_load(ready=False)
            self.kube.put(PODS, pod(f"{name}-{worker.name}", name, worker.address, ready=ready, uid=uid))
        router = self.gateway.router
        await until(lambda: router.catalogue.find(f"{NAMESPACE}/{name}"))
        await until(lambda: sum(n for (key, _), n in router.pool.states().items() if key.name == name) == len(workers))
        if ready and hears:  # else a first load, which closes a worker's breaker, would come at any time
            await until(lambda: self.hears(name))

    def hears(self, name):
        """Return whether every worker of the deployment tells its load."""
        pool = self.gateway.router.pool
        rooms = [pool.room_of(endpoint) for endpoint in pool.endpoints_of(ObjectKey(NAMESPACE, name))]
        return all(room and room.told for room in rooms)

    def outstanding(self):
        """Return the number of running requests."""
        return self.gateway.router.pool.in_flight().total()


@asynccontextmanager
async def running_house(kube, *, is_synced=True, traces=UNTRACED, **settings):
    """Run a gateway; end it in order unless the test did."""
    quick = {"lame_duck_s": 0.0, "drain_timeout_s": 5.0} | settings
    plain = Settings(host="127.0.0.1", port=0, control_port=0, metrics_port=0, http_port=0, pod_ips=ADDRESSES, **quick)
    seeds = Seeds((GATEWAY_SEED,))
    gateway = Gateway(plain, seeds, kube, rng=random.Random(7), traces=traces)
    ports = await gateway.start()
    stop = asyncio.Event()
    running = asyncio.create_task(gateway.run(stop))
    async with aio.insecure_channel(f"127.0.0.1:{ports.inference}") as channel:
        try:
            if is_synced:
                await until(lambda: gateway.router.is_synced)
            yield House(gateway, kube, ports, channel, rpc.InferenceStub(channel), stop, running)
        finally:
            stop.set()
            await running


@pytest.fixture
def kube():
    return ControlledKube()


@pytest.fixture
def make_house(kube):
    """Start a gateway with settings of the test's own."""

    def make(**settings):
        return running_house(kube, **settings)

    return make


@pytest.fixture
async def house(kube):
    async with running_house(kube) as made:
        yield made


@pytest.fixture
async def workers():
    """Two workers."""
    async with running_workers(2) as made:
        yield made
