"""Every panel of every dashboard shows something sensible, on a real Prometheus that watched a real release live.

Real: API server, operator, gateway, two workers with the small trained model, Prometheus. Played: the kubelet. They
serve, fall asleep and wake twice, lose an engine in the middle of streams, and are asked for what there is not.

DORMOUSE_PICTURES=docs/pictures keeps the pictures.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import grpc
import pytest
from grpc import aio

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from dormouse_gateway.testing.slices import SliceController
from dormouse_kube.api import GPU_POOLS
from localkube.packages import PROMETHEUS, ensure_package
from localkube.progress import Progress
from tests.faults.conftest import _NAMES, _NAMESPACES, _PATHS
from tests.faults.control_plane import ADMIN, render_rights
from tests.faults.programs import Program, clean_environment
from tests.faults.prometheus import Prometheus, Target
from tests.faults.worker_kubelet import WorkerKubelet
from tests.faults.world import World, definitions, install
from tests.ports import free_port
from tools.dashboards import DASHBOARDS
from tools.dashboards.picture import draw
from tools.release import CHART

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LARGEST_PICTURE = 200_000  # bytes
MAX_MODEL_LEN = 2048
LONG = 1800  # tokens of a stream that is not at its end when something happens: seconds of work
RESTLESS = {"level1AfterSeconds": 2, "minActiveSeconds": 0, "drainTimeoutSeconds": 10}
LARGEST = {"percentunit": 1.0, "s": 600.0, "bytes": 64 * 2**30, "reqps": 1e4, "ops": 1e4, "short": 1e9}


@dataclass
class Release:
    """What runs, and how to reach it."""

    world: World
    prometheus: Prometheus
    stub: rpc.InferenceStub
    http: str

    async def generate(self, text: str = "Once upon a time", *, model: str = "tiny", max_tokens: int = 24) -> int:
        """Return how many tokens a request brought."""
        sampling = pb.SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
        request = pb.GenerateRequest(model=model, text=text, sampling_params=sampling)
        return sum([len(m.token_ids) async for m in self.stub.Generate(request, timeout=240, wait_for_ready=True)])

    async def load(self, count: int = 12) -> None:
        """Send requests that begin alike, and others."""
        story = "The dormouse sleeps all winter long, and nobody may wake it before the spring has come. " * 3
        texts = [story + str(n) if n % 2 else f"Number {n} alone" for n in range(count)]
        await asyncio.gather(*(self.generate(text) for text in texts))

    async def is_asleep(self) -> bool:
        """Return whether Prometheus has seen all replicas asleep."""
        return await self.prometheus.number('sum(dormouse_replicas{state="asleep"})') == 2

    async def seen(self, query: str) -> None:
        """Wait until a query's answer is above 0."""
        await self.world.eventually(lambda: self.prometheus.number(query), timeout_s=90)


@pytest.fixture
async def release(plane, kube, toxiproxy, binaries, tmp_path, tiny_model):
    """A release with one deployment of two replicas, all awake and scraped."""
    namespace = f"test-{next(_NAMES)}"
    await install(kube, definitions())
    await kube.apply(_NAMESPACES, {"metadata": {"name": namespace}}, field_manager="tests")
    await install(kube, render_rights(binaries / "helm", CHART, namespace), ("operator-a", "operator-b"))
    world = World(plane, kube, namespace, tmp_path, toxiproxy)
    world.kubelet = WorkerKubelet(kube, namespace, world.touch, model=tiny_model, logs=tmp_path)
    ports = {name: free_port() for name in ("port", "control_port", "metrics_port", "http_port")}
    metrics_port = free_port()
    control = f"127.0.0.1:{ports['control_port']}"
    binary = await asyncio.to_thread(ensure_package, _PATHS, PROMETHEUS, Progress())
    async with (
        world.watching(),
        world.kubelet.running(),
        SliceController(kube, [namespace]).running(),
        running_gateway(world, ports),
        world.operator(metrics_port=metrics_port, gateway_control=control),
        Prometheus.running(tmp_path / "prometheus", binary / "prometheus") as prometheus,
        aio.insecure_channel(f"127.0.0.1:{ports['port']}") as channel,
    ):
        engine = {"device": "cpu", "dtype": "float32", "maxModelLen": MAX_MODEL_LEN, "maxNumSeqs": 4}
        await world.apply("tiny", replicas=2, engine=engine, lifecycle={**RESTLESS, "desiredState": "Active"})
        await kube.apply(GPU_POOLS, idle_pool(namespace), field_manager="tests")
        await world.until(lambda: world.is_ready("tiny") and len(world.ready_pods("tiny")) == 2, timeout_s=120)
        ours = {"operator-a-0": metrics_port, "gateway-0": ports["metrics_port"]}
        targets = [Target(f"127.0.0.1:{port}", "system", pod) for pod, port in ours.items()]
        targets += [Target(worker.address, namespace, pod) for pod, worker in world.kubelet.workers.items()]
        prometheus.scrape(targets)
        yield Release(world, prometheus, rpc.InferenceStub(channel), f"http://127.0.0.1:{ports['http_port']}")


def idle_pool(namespace):
    """Return a pool without members: all that is said of it is that nothing happens."""
    spec = {"slots": 1, "device": {"claim": {"deviceClassName": "gpu.example.com"}}}
    kind = {"apiVersion": "inference.dormouse.dev/v1alpha1", "kind": "GpuPool"}
    return {**kind, "metadata": {"namespace": namespace, "name": "idle"}, "spec": spec}


@asynccontextmanager
async def running_gateway(world, ports):
    """Run a gateway of this namespace."""
    tokens = world.folder / "tokens"
    chosen = {
        "KUBECONFIG": world.plane.kubeconfig(ADMIN),
        "DORMOUSE_WATCH_NAMESPACES": world.namespace,
        "DORMOUSE_TOKENS_DIR": tokens,
        "DORMOUSE_HOST": "127.0.0.1",
        "DORMOUSE_POD_IPS": "127.0.0.1",
        **{f"DORMOUSE_{name.upper()}": port for name, port in ports.items()},
    }
    command = [sys.executable, "-m", "dormouse_gateway"]
    program = Program(command, log=world.folder / "gateway.log", env=clean_environment(**chosen))
    try:
        yield program
    finally:
        program.end()


async def ask_for_what_there_is_not(release):
    """Have requests refused, over both doors."""
    for _ in range(2):
        with pytest.raises(grpc.RpcError) as caught:
            await release.generate(model="nobody")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        async with aiohttp.ClientSession() as session:
            body = {"model": "tiny", "prompt": "Once", "max_tokens": 4}
            async with session.post(f"{release.http}/v1/completions", json=body) as answer:
                assert answer.status == 200
            async with session.post(f"{release.http}/v1/completions", json={**body, "model": "nobody"}) as answer:
                assert answer.status == 404
        await release.seen('dormouse_rejected_total{reason="unknown_model"}')


async def sleep_and_wake(release):
    """Let the deployment fall asleep twice; each time a request wakes it."""
    await release.world.apply("tiny", **await spec_of(release, lifecycle=RESTLESS))
    for _ in range(2):
        await release.world.eventually(release.is_asleep, timeout_s=90)
        await release.load(4)
        await release.seen('dormouse_replicas{state="active"}')


async def lose_an_engine(release):
    """Kill an engine in the middle of streams; all of them come to their end elsewhere."""
    await release.world.apply("tiny", **await spec_of(release, lifecycle={**RESTLESS, "desiredState": "Active"}))
    await release.seen('sum(dormouse_replicas{state="active"}) == 2')
    streams = [asyncio.create_task(release.generate(f"Story {n}", max_tokens=LONG)) for n in range(4)]
    worker = next(iter(release.world.kubelet.workers.values()))
    await release.world.eventually(worker.is_busy)
    worker.kill_engine()
    assert await asyncio.gather(*streams) == [LONG] * 4
    await release.seen("dormouse_engine_restarts_total")
    await release.seen("dormouse_migrated_total")
    await release.seen('sum(dormouse_replicas{state="active"}) == 2')


async def spec_of(release, **changes):
    """Return the deployment's spec with changes, as `apply` takes it."""
    spec = release.world.deployment("tiny")["spec"]
    return {"replicas": spec["replicas"], "engine": spec["engine"], **changes}


def faults_of(panel, legend, lines):
    """Return what is wrong with what a query of a panel shows."""
    values = [value for line in lines for _, value in line.points]
    finite = [value for value in values if math.isfinite(value)]
    where = f"{panel.title} / {legend}"
    if not finite:
        return [f"{where}: no data in {len(lines)} series: {panel.queries[legend]}"]
    if any(math.isinf(value) for value in values):
        return [f"{where}: infinite: {panel.queries[legend]}"]
    if not 0 <= min(finite) <= max(finite) <= LARGEST[panel.unit]:
        return [f"{where}: {min(finite)} … {max(finite)} {panel.unit}: {panel.queries[legend]}"]
    return []


async def look_at(board, prometheus, *, start_s, end_s):
    """Return what is wrong with a dashboard, and its picture."""
    faults, lines = [], {}
    for panel in board.panels:
        for legend, query in panel.queries.items():
            found = await prometheus.lines(legend, query, start_s=start_s, end_s=end_s)
            faults += faults_of(panel, legend, found)
            lines.setdefault(panel.title, []).extend(found)
    note = f"Drawn by our own program from a test's Prometheus, {end_s - start_s:.0f} seconds; it is not Grafana's."
    return faults, draw(board, lines, start_s=start_s, end_s=end_s, note=note)


async def test_every_panel_shows_finite_and_plausible_data_after_load_sleep_wake_and_a_fault(release, tmp_path):
    start_s = time.time()
    await release.load()
    await ask_for_what_there_is_not(release)
    await sleep_and_wake(release)
    await lose_an_engine(release)
    end_s, pictures = time.time(), Path(os.environ.get("DORMOUSE_PICTURES", tmp_path))
    all_faults = []
    for board in DASHBOARDS:
        faults, picture = await look_at(board, release.prometheus, start_s=start_s, end_s=end_s)
        all_faults += faults
        (pictures / f"{board.uid}.svg").write_text(picture, "utf-8")
        assert len(picture.encode()) < LARGEST_PICTURE
    assert all_faults == []
    groups = (await release.prometheus.ask("rules"))["groups"]
    assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}
