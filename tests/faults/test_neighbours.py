"""Two deployments outside of pools whose workers tell of one GPU take turns on it.

Real: API server, operator, gateway, workers with the small trained model, on a stand-in GPU with room for one of them.
Played: the kubelet, and a device plugin that gave one GPU to both pods.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dormouse_gateway.testing.slices import SliceController
from dormouse_kube.api import PODS
from dormouse_kube.client import KubeClient
from dormouse_worker.model.device.ledger import Marks
from dormouse_worker.model.device.ledger_file import offer_device, read_usage
from tests.faults.conftest import _NAMES, _NAMESPACES
from tests.faults.control_plane import ControlPlane, render_rights
from tests.faults.gateway_process import Client
from tests.faults.test_wakes import directed, gateway_of
from tests.faults.worker_kubelet import WorkerKubelet
from tests.faults.world import World, definitions, install
from tools.release import CHART

DUSK, DAWN = "dusk", "dawn"
DEVICE, DEVICE_BYTES = "gpu-0", 128 << 20  # of two awake there is room for one
ENGINE = {"device": "cuda", "dtype": "float32", "maxModelLen": 256, "maxNumSeqs": 2, "kvCacheMemory": "64Mi"}
SHORT = {"minActiveSeconds": 0, "level1AfterSeconds": 1, "holdTimeoutSeconds": 100}
STAYS = {**SHORT, "level1AfterSeconds": 3600}  # it sleeps for nobody but a neighbour
START_S = 120.0
GREEDY = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}


@dataclass
class House:
    """A node with one GPU, and who runs there."""

    world: World
    client: Client
    device: Path

    async def deploy(self, name: str, lifecycle: dict[str, Any]) -> None:
        """Create a deployment that takes the stand-in for its GPU, or change its lifecycle."""
        worker = {"name": "worker", "env": [{"name": "STAND_IN_DEVICES", "value": str(self.device.parent)}]}
        template = {"spec": {"containers": [worker]}}
        await self.world.apply(name, engine=ENGINE, lifecycle=lifecycle, template=template)

    async def phase(self, name: str, phase: str) -> None:
        """Wait until a deployment says that it is in a phase."""
        await self.world.until(lambda: self.world.status(name).get("phase") == phase, timeout_s=START_S)

    async def answer(self, name: str) -> list[int]:
        """Return the tokens of a call, however long it is held."""
        call = self.client.ask(name, sampling=GREEDY, timeout=START_S)
        return [token async for message in call for token in message.token_ids]

    @property
    def marks(self) -> Marks:
        """Return how far the GPU's books ever went."""
        return read_usage(self.device).marks


@pytest.fixture
async def house(
    plane: ControlPlane, kube: KubeClient, toxiproxy: Path, binaries: Path, tmp_path: Path, tiny_model: Path
) -> AsyncIterator[House]:
    """A namespace with operator and gateway."""
    namespace = f"test-{next(_NAMES)}"
    await install(kube, definitions())
    await kube.apply(_NAMESPACES, {"metadata": {"name": namespace}}, field_manager="tests")
    await install(kube, render_rights(binaries / "helm", CHART, namespace), ("operator-a",))
    await install(kube, render_rights(binaries / "helm", CHART, namespace, component="gateway"), ("gateway",))
    device = tmp_path / "stand-ins" / DEVICE
    offer_device(device, DEVICE_BYTES)
    world = World(plane, kube, namespace, tmp_path, toxiproxy)
    world.kubelet = WorkerKubelet(kube, namespace, world.touch, model=tiny_model, logs=tmp_path)
    env = directed(world)
    async with (
        world.watching(),
        world.kubelet.running(),
        SliceController(kube, [namespace]).running(),
        gateway_of(world, env) as gateway,
        gateway.client() as client,
        world.operator(gateway_control=f"127.0.0.1:{env['DORMOUSE_CONTROL_PORT']}"),
    ):
        yield House(world, client, device)


async def test_who_is_called_has_the_gpu_and_an_idle_neighbour_sleeps_for_it(house: House) -> None:
    for name in (DUSK, DAWN):  # each starts on a GPU that the other has left
        await house.deploy(name, SHORT)
        await house.phase(name, "Active")
        await house.phase(name, "Asleep")
        assert house.world.status(name)["kvCache"]["ranks"][0]["gpuUUID"] == DEVICE
    for name in (DUSK, DAWN):
        await house.deploy(name, STAYS)
    expected = await house.answer(DUSK)
    for name, other in ((DAWN, DUSK), (DUSK, DAWN)):
        await house.phase(other, "Active")
        assert await house.answer(name) == expected
        lifecycle = house.world.status(other)["lifecycle"]
        assert (lifecycle["rung"], lifecycle["reason"]) == ("Level1", "neighbour")
    busy = house.client.ask(DUSK, sampling={**GREEDY, "max_tokens": 240}, timeout=START_S)
    tokens = list((await anext(aiter(busy))).token_ids)
    assert await house.answer(DAWN) == expected
    tokens += [token async for message in busy for token in message.token_ids]
    assert len(tokens) == 240, "it was ended for its neighbour"
    marks = house.marks
    assert (marks.most_awake, marks.over_size_bytes) == (1, 0)


@pytest.mark.slow
async def test_who_starts_beside_one_that_is_awake_says_what_it_lacks_and_starts_anew_with_its_pod(
    house: House,
) -> None:
    world, condition = house.world, partial(house.world.condition, DAWN, "MemoryProfiled")
    await house.deploy(DUSK, STAYS)
    await house.phase(DUSK, "Active")
    expected = await house.answer(DUSK)
    await house.deploy(DAWN, STAYS)
    await world.until(lambda: condition().get("reason") == "InsufficientMemory", timeout_s=START_S)
    assert await house.answer(DUSK) == expected
    await house.deploy(DUSK, SHORT)
    await house.phase(DUSK, "Asleep")
    await world.kube.delete(PODS, world.namespace, world.pods(DAWN)[0]["metadata"]["name"])
    await world.until(lambda: world.is_ready(DAWN), timeout_s=START_S)
    assert await house.answer(DAWN) == expected
    assert house.marks.most_awake == 1
