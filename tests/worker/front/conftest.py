"""A whole front in this process: real ports, a real unix socket, an engine without torch."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dormouse_api.names import Role
from dormouse_api.testing_tickets import proof, public_key
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as inference_rpc
from dormouse_api.v1 import worker_control_pb2 as control_pb
from dormouse_api.v1 import worker_control_pb2_grpc as control_rpc
from dormouse_worker.common.ipc import AddRequest, State
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.front.app import Front, Ports, Seams
from dormouse_worker.front.engine.status_board import Changes
from dormouse_worker.front.testing import engine_settings, front_settings, write_model
from dormouse_worker.testing.fake_engine import Script
from dormouse_worker.testing.in_process import InProcessEngine

OWN_FIELDS = ("answer_parsing", "model", "request_id", "resume", "priority", "stream_interval", "prediction")
OTHER_TOKENS, OTHER_VOCAB_SIZE = (11, 12), 100  # of the model to swap to
COLD = Seams(warms_templates=False)  # most tests render nothing, and a process is not for nothing


@dataclass
class House:
    """A running front and the doors to it."""

    front: Front
    engines: list[InProcessEngine]
    started: list[EngineSettings]  # what each engine was started with
    ports: Ports
    stop: asyncio.Event
    running: asyncio.Task
    serving: aio.Channel
    control: aio.Channel
    spawns: Changes

    @property
    def engine(self):
        """The newest engine; those before it died."""
        return self.engines[-1]

    @property
    def inference(self):
        return inference_rpc.InferenceStub(self.serving)

    async def operate(self, method, timeout=90, **fields):
        """Call WorkerControl in the operator's role."""
        name = "GetStatus" if method == "WatchStatus" else method
        stub = getattr(control_rpc.WorkerControlStub(self.control), method)
        request = getattr(control_pb, f"{name}Request")(**fields)
        return await stub(request, timeout=timeout, metadata=proof(Role.OPERATOR))

    async def refusal(self, call) -> aio.AioRpcError:
        """Return the error with which the call ends."""
        with pytest.raises(aio.AioRpcError) as caught:
            await call
        return caught.value

    async def make_ready(self, **counts):
        await self.operate("DetermineNumAvailableBlocks")
        return await self.operate("InitializeCache", **{"num_gpu_blocks": 40, "num_cpu_blocks": 0, **counts})

    def generate(self, prompt="hi", *, metadata=None, timeout=90, **fields):
        """Begin a stream; a list is a prompt of token ids; what is no field of the request is a sampling parameter."""
        kinds = {str: "text", list: "token_ids", pb.Chat: "chat"}
        kind = {kinds[type(prompt)]: pb.TokenIds(ids=prompt) if isinstance(prompt, list) else prompt}
        own = {name: fields.pop(name) for name in OWN_FIELDS if name in fields}
        params = pb.SamplingParams(**{"max_tokens": 4, **fields})
        request = pb.GenerateRequest(sampling_params=params, **own, **kind)
        return self.inference.Generate(request, timeout=timeout, metadata=metadata)

    async def tokenize(self, text):
        """Return the token ids of a text."""
        return await self.inference.Tokenize(pb.TokenizeRequest(text=text), timeout=90)

    async def collect(self, *args, **kwargs):
        """Return all messages of a stream."""
        return [message async for message in self.generate(*args, **kwargs)]

    async def begin_request(self):
        """Return a stream that has begun and goes on only when the test steps the engine."""
        self.engine.is_paused = True
        call = self.generate([1, 2, 3], max_tokens=3)
        await self.engine.until_received(lambda message: isinstance(message, AddRequest))
        return call

    async def drained_by(self, call):
        """Start a control call and return its task once the worker drains."""
        task = asyncio.create_task(call)
        await self.until_state(State.DRAINING)
        return task

    async def until_state(self, state):
        await self.front.worker.changes.until(lambda: self.front.worker.board.state is state)

    async def until_spawned(self, number):
        """Wait until the so-many-th engine was started."""
        await self.spawns.until(lambda: len(self.engines) >= number and self.engine.is_spawned)

    def swap(self, path, *flags, name="tiny", **fields):
        """Begin a swap to the model, with a command line like that of the front that `open_house` starts."""
        own = ("--load-format=dummy", "--host=127.0.0.1", "--port=0", "--control-port=0", "--metrics-port=0")
        arguments = [f"--model={path}", f"--served-model-name={name}", "--max-engine-restarts=0", *own, *flags]
        fields = {"settings_digest": "other digest", "arguments": arguments, **fields}
        return asyncio.create_task(self.operate("SwapEngine", **fields))

    async def refused_swap(self, path, *flags, **fields):
        """Return the error of a swap that fails."""
        return await self.refusal(self.swap(path, *flags, **fields))

    async def tokens(self, prompt=(1, 2, 3), **fields):
        """Return the four tokens that a request gets."""
        return [t for m in await self.collect(list(prompt), max_tokens=4, **fields) for t in m.token_ids]

    async def inference_health(self):
        """Return what gRPC's health says of serving."""
        request = health_pb2.HealthCheckRequest(service="dormouse.v1.Inference")
        answer = await health_pb2_grpc.HealthStub(self.serving).Check(request)
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)

    async def http(self, path, method="GET"):
        """Return status and body."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ports.http)
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
        await writer.wait_closed()
        return int(head.split()[1]), body


@pytest.fixture(scope="session")
def model_path(tmp_path_factory):
    """A model's directory without weights."""
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def open_house(model_path):
    """Start a front; it ends with the block."""

    @asynccontextmanager
    async def opened(
        script=None,
        *,
        ready=True,
        path=model_path,
        loaded=True,
        seams=None,
        scripts=None,
        engine=None,
        tracer=None,
        spare=None,
        **settings,
    ):
        engines, started, spawns = [InProcessEngine(script or Script())], [], Changes()
        if not loaded:
            engines[0].loaded.clear()

        def spawn_for(settings):
            async def spawn(socket_path):
                if engines[-1].is_spawned:
                    engines.append(make_engine(settings))
                started.append(settings)
                process = await engines[-1].spawn(socket_path)
                spawns.notify()
                return process

            return spawn

        def make_engine(settings):
            """Return the engine of a model: of its own script, where one stands in `scripts`."""
            return InProcessEngine((scripts or {}).get(Path(settings.model).name) or script or Script())

        keys = {"operator_key": public_key(Role.OPERATOR), "gateway_key": public_key(Role.GATEWAY)}
        settings = front_settings(**keys, **settings)
        engine = engine_settings(path, **(engine or {}))
        front = Front(settings, engine, spawn_for, seams or COLD, tracer=tracer, spare=spare)
        ports, stop = await front.start(), asyncio.Event()
        running = asyncio.create_task(front.run(stop))
        async with (
            aio.insecure_channel(f"127.0.0.1:{ports.inference}") as serving,
            aio.insecure_channel(f"127.0.0.1:{ports.control}") as control,
        ):
            house = House(front, engines, started, ports, stop, running, serving, control, spawns)
            try:
                if ready:
                    await house.make_ready()
                yield house
            finally:
                engines[-1].loaded.set()
                stop.set()
                await running

    return opened


@pytest.fixture(scope="session")
def other(tmp_path_factory):
    """Another model: fewer tokens, another template."""
    path = write_model(tmp_path_factory.mktemp("models") / "other", template="other:{{ messages[0].content }}")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "vocab_size": OTHER_VOCAB_SIZE}))
    return path


@pytest.fixture
def open_with(open_house):
    """Start a front whose engine for the other model follows this script."""

    def opened(script=None, **kwargs):
        return open_house(scripts={"other": script or Script(tokens=OTHER_TOKENS)}, **kwargs)

    return opened


@pytest.fixture
async def house(open_house):
    """A front in READY whose engine echoes the prompt."""
    async with open_house() as house:
        yield house
