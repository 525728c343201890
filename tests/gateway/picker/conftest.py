"""A real Envoy, a whole gateway, workers that talk, each with the HTTP API of its pod; Kubernetes in memory."""

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest
from grpc import aio

from bench.envoy.config import Wish
from bench.envoy.process import running_envoy
from dormouse_api.foreign import ext_proc_pb2_grpc as rpc
from dormouse_api.listening import listen
from dormouse_api.names import Role
from dormouse_api.testing_tickets import knows
from dormouse_gateway.beside import Flags, LetIn, make_door
from dormouse_gateway.openai.testing import TalkingWorker
from dormouse_gateway.testing.workers import NAMESPACE, infd, pod
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS
from dormouse_kube.reflector import ObjectKey
from tests.gateway.conftest import running_house
from tests.waiting import until

HI = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
CHAT = "/v1/chat/completions"
DUPLEX = {"request_body_mode": "FULL_DUPLEX_STREAMED", "response_body_mode": "FULL_DUPLEX_STREAMED"}
KEY = ObjectKey(NAMESPACE, "tiny")


@dataclass
class Town:
    """What a test has."""

    house: object
    workers: list
    http_ports: list
    folder: object
    session: aiohttp.ClientSession

    @property
    def router(self):
        return self.house.gateway.router

    @asynccontextmanager
    async def envoy(self, **how):
        """Run an Envoy that asks the gateway; yield its address."""
        wish = Wish(pickers=how.pop("pickers", [self.house.ports.picker]), **how)
        async with running_envoy(wish, self.folder) as url:
            yield url

    async def ask(self, url, body=None, path=CHAT, **how):
        """Return status and body of a response."""
        async with self.session.post(url + path, json=HI if body is None else body, **how) as response:
            return response.status, await response.json(content_type=None)

    def sleep(self):
        """Have all workers asleep."""
        for worker in self.workers:
            worker.tell_load(ready=False)

    def is_quiet(self):
        """Return whether nothing runs or waits."""
        activity = self.router.activity.activity(KEY)
        return not (self.house.outstanding() or activity.in_flight or activity.held)


@asynccontextmanager
async def running_door(worker, uid, *, fails_open=False, name="tiny"):
    """Run the HTTP API of a worker's pod; yield its port."""
    host, _, port = worker.address.rpartition(":")
    let_in = LetIn(check=knows(Role.GATEWAY, audience=uid), fails_open=fails_open)
    door, listener = make_door(Flags((name, f"default/{name}"), 0, (host, int(port)), let_in)), listen("127.0.0.1", 0)
    await door.start(listener)
    try:
        yield listener.getsockname()[1]
    finally:
        await door.stop()


@pytest.fixture
def make_town(kube, tmp_path):
    """Make a town with so many workers of the model tiny, and settings of the gateway's own."""

    @asynccontextmanager
    async def make(count=2, *, fails_open=False, offered=True, spec=None, **settings):
        async with AsyncExitStack() as stack:
            house = await stack.enter_async_context(running_house(kube, picker_port=0, **settings))
            workers, ports = [], []
            kube.put(
                INFERENCE_DEPLOYMENTS, infd("tiny", serving={"inferencePool": True} if offered else {}, **(spec or {}))
            )
            for index in range(count):
                worker, uid = TalkingWorker(name=f"w{index}"), f"uid-{index}"
                await worker.start()
                stack.push_async_callback(worker.stop)
                ports.append(await stack.enter_async_context(running_door(worker, uid, fails_open=fails_open)))
                kube.put(PODS, pod(f"tiny-w{index}", "tiny", worker.address, uid=uid, http_port=ports[-1]))
                workers.append(worker)
            await until(lambda: sum(house.gateway.router.pool.states().values()) == count)
            await until(lambda: house.hears("tiny"))
            session = await stack.enter_async_context(aiohttp.ClientSession())
            yield Town(house, workers, ports, tmp_path, session)

    return make


@pytest.fixture
async def town(make_town):
    async with make_town() as made:
        yield made


@pytest.fixture
async def picker(town):
    """A stub of the town's picker."""
    async with aio.insecure_channel(f"127.0.0.1:{town.house.ports.picker}") as channel:
        yield rpc.ExternalProcessorStub(channel)
