"""The front as one thing: two gRPC ports, one HTTP port, one engine. Owns their start, their order and their end."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dormouse_api.v1 import kv_blocks_pb2_grpc, relay_pb2_grpc, worker_control_pb2_grpc
from dormouse_worker.common.errors import ModelUnreadable, WorkerError
from dormouse_worker.common.ipc import State
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.tasks import GENERATE
from dormouse_worker.files.gguf.folder import as_directory
from dormouse_worker.front.api.control import ControlService
from dormouse_worker.front.api.grpc_doors import GrpcDoors
from dormouse_worker.front.api.http import HttpDoor
from dormouse_worker.front.api.inference import InferenceService
from dormouse_worker.front.api.kv_blocks import KvBlocksService
from dormouse_worker.front.api.listening import plain_host, port_error
from dormouse_worker.front.api.probes import Probes
from dormouse_worker.front.api.relay import RelayService
from dormouse_worker.front.certificate import Certificate
from dormouse_worker.front.conduct.adapters import Adapters
from dormouse_worker.front.conduct.first_reading import FirstReading, Patience
from dormouse_worker.front.conduct.helpers import Helpers
from dormouse_worker.front.conduct.sleep_conductor import SleepConductor
from dormouse_worker.front.conduct.spare import SpareEngine
from dormouse_worker.front.conduct.standalone import agree_with_itself, invitation
from dormouse_worker.front.conduct.supervisor import EngineKeeper
from dormouse_worker.front.conduct.swap import EngineSwap, Workshop
from dormouse_worker.front.engine.command_queue import CommandQueue
from dormouse_worker.front.engine.config import EngineConfig, Served
from dormouse_worker.front.engine.grants import Grants
from dormouse_worker.front.engine.restarts import RestartLimits
from dormouse_worker.front.flags.settings import FrontSettings
from dormouse_worker.front.images.folder import ImageFolder
from dormouse_worker.front.kv_events.sockets import make_publisher
from dormouse_worker.front.model_reading import load_model
from dormouse_worker.front.requests.parsing import add_inference
from dormouse_worker.front.sides import SpawnFor
from dormouse_worker.front.telemetry.tracing import UNTRACED, Traces
from dormouse_worker.front.text.turns import NUM_THREADS, TextWork
from dormouse_worker.front.worker import Worker

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

logger = logging.getLogger(__name__)

STOP_GRACE_S = 1.0  # what calls get to end after the requests are done: watchers end by themselves
EXIT_DRAINED, EXIT_ENGINE_DIED = 0, 1


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the front listens."""

    inference: int
    control: int
    http: int


@dataclass(frozen=True, slots=True)
class Seams:
    """What tests replace."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    now: Callable[[], datetime] = field(default=lambda: datetime.now().astimezone())
    patience: Patience = field(default_factory=Patience)
    instance: str = field(default_factory=lambda: uuid.uuid4().hex)  # of this run of the container
    warms_templates: bool = True  # starts what renders chats before the first one comes


class Front:
    """Everything composed. Use: start, run until stopped or the engine died for good, which returns the exit code."""

    def __init__(
        self,
        settings: FrontSettings,
        engine: EngineSettings,
        spawn_for: SpawnFor,
        seams: Seams | None = None,
        *,
        spare: SpareEngine | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """Read the model's files. Needs a running event loop. A bad model makes a FAILED worker.

        Raises TlsError where the certificate cannot be used.
        """
        seams = seams or Seams()
        self._settings = settings
        self._certificate = Certificate(settings.mutual_tls_dir)
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="text")
        self._text_work = TextWork(self._threads)
        self._now = seams.now
        self._images = ImageFolder()
        read, without = (partial(how, settings, engine) for how in (self._read_edition, EngineConfig))
        self._reading = FirstReading(read, without, engine.model_path, seams.patience)
        self._tasks: list[asyncio.Task[None]] = []
        self._spare = spare
        if spare is not None:
            spawn_for = spare.spawning(spawn_for)
        grants = Grants(seams.instance, needs_grant=settings.device_grants)
        spawn_for, served = self._images.spawning(grants.spawning(spawn_for)), Served(self._reading.soon())
        self.worker = Worker(spawn_for(engine), served, grants, clock=seams.clock, now=seams.now)
        self._helpers = Helpers(self.worker, starts_ahead=seams.warms_templates)
        self.worker.kv_events = make_publisher(settings.kv_events, seams.clock, settings.environ)
        self._socket_dir = Path(tempfile.mkdtemp(prefix="dormouse-"))  # only we may enter
        turns = CommandQueue()
        conductor = SleepConductor(self.worker, turns)
        self._swap = EngineSwap(
            self.worker, turns, conductor, Workshop(spawn_for, self._read_edition, self._socket_dir)
        )
        self._adapters = Adapters(self.worker, turns, settings)
        control = ControlService(self.worker, turns, conductor, self._swap, self._adapters)
        self._make_doors(control, _traces(tracer, self.worker))
        limits = RestartLimits(settings.max_engine_restarts, settings.engine_restart_window_s)
        self._keeper = EngineKeeper(self.worker, self._socket_dir / "engine.sock", limits, sleep=seams.sleep)

    def __repr__(self) -> str:
        return f"Front({self.worker!r})"

    async def start(self) -> Ports:
        """Open the ports and start the engine. Raises OSError or RuntimeError when a port is taken."""
        await self._grpc.tell(is_ready=False)
        ports = Ports(
            self._grpc.listen(),
            self._grpc.listen_for_control(),
            await self._listen_http(plain_host(self._settings.host)),
        )
        self._certificate.follow()
        self.worker.kv_events.start()
        if self._reading.was_soon:
            await self._reading.hand_over(self.worker, self._keeper.start)
        else:
            self._tasks.append(asyncio.create_task(self._reading.hand_over_late(self.worker, self._keeper.start)))
        if self._spare is not None:
            self._tasks.append(asyncio.create_task(self._spare.keep(self.worker)))
        await self._grpc.start()
        fields = {"inference": ports.inference, "control": ports.control, "http": ports.http}
        logger.info("listening", extra={"fields": fields})
        if self._settings.standalone:
            self._tasks.append(asyncio.create_task(agree_with_itself(self.worker, self._announcer(ports))))
        return ports

    async def run(self, stop: asyncio.Event) -> int:
        """Serve until `stop`, Shutdown or the engine's last death; end in order and return the exit code."""
        following = asyncio.create_task(self._follow_state())
        ends = stop, self.worker.died, self.worker.end_wanted
        waiting = [asyncio.create_task(event.wait()) for event in ends]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not self.worker.died.is_set():
                await self._drain()
            return EXIT_ENGINE_DIED if self.worker.died.is_set() else EXIT_DRAINED
        finally:
            for task in waiting:
                task.cancel()
            await self.close()
            await following

    async def close(self) -> None:
        """End the engine and close everything; safe after a failed start."""
        self.worker.is_ending = True
        await self._adapters.close()
        await self._keeper.stop()
        await asyncio.gather(self.worker.link.stop(), self._swap.stop())
        await self.worker.link.stop()  # what a swap put in its place just then
        self._certificate.close()
        self.worker.changes.close()
        self.worker.load_changes.close()
        await self._kv_blocks.until_quiet()
        self._relay.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, self._helpers.close(), return_exceptions=True)
        await self._grpc.stop(STOP_GRACE_S)
        await self._http.stop()
        await self.worker.kv_events.stop()
        self.worker.served.close()
        self._threads.shutdown(wait=False)
        self._images.close()
        shutil.rmtree(self._socket_dir, ignore_errors=True)

    def _announcer(self, ports: Ports) -> Callable[[], None]:
        """Return what tells the user, once, that and where the worker serves."""
        settings, told = self._settings, asyncio.Event()

        def announce() -> None:
            if told.is_set():
                return
            told.set()
            model = self.worker.served.edition.model
            known = None if isinstance(model, WorkerError) else model
            can_chat, task = (bool(known.templates), known.card.task) if known else (False, GENERATE)
            name = settings.served_model_names[0]
            print(
                invitation(name, settings.host, ports.inference, ports.http, can_chat=can_chat, task=task), flush=True
            )

        return announce

    async def _listen_http(self, host: str | None) -> int:
        port = self._settings.metrics_port
        try:
            return await self._http.start(host, port)
        except OSError as error:
            raise port_error("--metrics-port", port, error) from error

    async def _drain(self) -> None:
        """Say that we go, let running requests end, end the others so that they can be continued elsewhere."""
        logger.info("ending", extra={"fields": {"requests": len(self.worker.requests)}})
        self._kv_blocks.expects_callers = len(self.worker.requests) > 0
        self.worker.begin_end()
        await self._grpc.say_that_it_ends()
        died = asyncio.create_task(self.worker.died.wait())
        idle = asyncio.create_task(self.worker.until_idle())
        timeout_s = self.worker.settings.drain_timeout_s
        _, late = await asyncio.wait({died, idle}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for task in late:
            task.cancel()
        self.worker.requests.fail_all(f"the worker shut down after {timeout_s:g} s of draining")

    def _kv_store_dir(self) -> str:
        return self.worker.served.edition.engine.kv_store_dir if self._settings.gateway_key else ""

    async def _follow_state(self) -> None:
        """Keep gRPC's health in step with the state."""
        worker = self.worker
        async for state in worker.changes.stream(lambda: worker.board.state, min_interval_s=0.0):
            await self._take_tokenizer()  # first: who sees READY may send text
            await self._grpc.tell(is_ready=state is State.READY)
            if state is State.READY:
                self._adapters.opens()
            self._helpers.follow(state)

    async def _take_tokenizer(self) -> None:
        """Load what the engine made for a model without tokenizer.json."""
        model = self.worker.served.edition.model
        if isinstance(model, WorkerError):
            return
        try:
            await model.take_tokenizer(self.worker.board.engine)
        except WorkerError as error:
            self.worker.board.fail(error.reason, str(error))

    def _make_doors(self, control: ControlService, traces: Traces) -> None:
        proofs = self._settings.proofs()
        self._grpc = GrpcDoors(self._settings, self._certificate, proofs)
        inference = InferenceService(self.worker, proofs, traces)
        self._relay = RelayService(inference.Generate, max_open_calls=self._settings.max_open_calls)
        for server in self._grpc.for_callers:
            add_inference(inference, server)
            relay_pb2_grpc.add_RelayServicer_to_server(self._relay, server)
        self._kv_blocks = KvBlocksService(self._kv_store_dir)
        kv_blocks_pb2_grpc.add_KvBlocksServicer_to_server(self._kv_blocks, self._grpc.inference)
        worker_control_pb2_grpc.add_WorkerControlServicer_to_server(control, self._grpc.control)
        probes = Probes(self.worker, self._certificate, is_standalone=self._settings.standalone)
        self._http = HttpDoor(probes.paths)

    def _read_edition(self, settings: FrontSettings, engine: EngineSettings) -> EngineConfig:
        """Read the model's files; slow. Raises nothing."""
        try:
            model = load_model(
                as_directory(engine),
                settings.served_model_names,
                work=self._text_work,
                now=self._now,
                make_senses=self._images.senses_for(engine, settings.images, settings.sounds),
                make_desk_for_sound=self._images.desk_for_sound(engine, settings.sounds),
            )
        except WorkerError as error:
            return EngineConfig(settings, engine, error)
        except OSError as error:  # the volume's: access denied, stale handle, timed out
            words = f"{engine.model_path}: a file there cannot be read: {error}; is its volume mounted, and readable?"
            return EngineConfig(settings, engine, ModelUnreadable(words))
        return EngineConfig(settings, engine, model)


def _traces(tracer: Tracer | None, worker: Worker) -> Traces:
    """Return who makes spans. OpenTelemetry is imported where tracing is on, only."""
    if tracer is None:
        return UNTRACED
    from dormouse_worker.front.telemetry.spans import OtelTraces

    return OtelTraces(tracer, clock=worker.clock)
