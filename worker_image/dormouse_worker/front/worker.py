"""The worker as its two services see it: state, requests in flight, epoch, and the link to the engine, composed.

Knows no gRPC server and no protobuf request; raises CallError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from functools import partial

import grpc

from dormouse_api.limits import MAX_EPOCH
from dormouse_api.status import CallError
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_worker.common.commands import Command
from dormouse_worker.common.errors import WorkerError
from dormouse_worker.common.exit_codes import EXIT_GPU_UNHEALTHY
from dormouse_worker.common.ipc import EngineStatus, FrontMessage, Leave, State, StepOutputs
from dormouse_worker.common.lifecycle import RETRY_AFTER_S, describe
from dormouse_worker.front.engine.adapter_board import AdapterBoard
from dormouse_worker.front.engine.config import EngineConfig, Served
from dormouse_worker.front.engine.grants import Grants
from dormouse_worker.front.engine.link import EngineLink, EngineLost
from dormouse_worker.front.engine.losses import EngineLosses
from dormouse_worker.front.engine.status_board import Changes, StatusBoard
from dormouse_worker.front.engine.watchdog import Watchdog, overdue
from dormouse_worker.front.engine.wire import Counts, tell_losses, to_error, to_status
from dormouse_worker.front.flags.settings import FrontSettings
from dormouse_worker.front.kv_events.publisher import NoPublisher
from dormouse_worker.front.late_door import LateDoor
from dormouse_worker.front.requests.caller import Caller
from dormouse_worker.front.requests.in_flight import RequestTable
from dormouse_worker.front.sides import Spawn
from dormouse_worker.front.telemetry.metrics import WorkerMetrics

IDLE = StepOutputs([], running=0, waiting=0, kv_cache_usage=0.0)


class Worker:
    """Implements `EngineEvents`. Composes the owners of state; owns only the epoch and whether the end has begun."""

    def __init__(
        self,
        spawn: Spawn,
        served: Served,
        grants: Grants,
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime],
    ) -> None:
        self.served = served
        self.grants = grants
        self.changes = grants.changes  # state, failure, epoch and grant
        self.load_changes = Changes()  # requests and steps
        self.kv_events = NoPublisher()  # another one is set where others are told of the cache
        self.board = StatusBoard(self.changes)
        self.late_door = LateDoor(self.board, self.load_changes.notify)
        self.adapters = AdapterBoard(self.changes.notify)
        self.metrics = WorkerMetrics(served.edition.model_name, clock=clock)
        self.link = EngineLink(spawn, self, clock)
        self.metrics.follow_engine(self._engine_silence_s)
        max_waiting = self.settings.max_waiting_requests
        self.requests = RequestTable(self._send, self.metrics, max_waiting=max_waiting, changes=self.load_changes)
        self._follow_adapters()
        self.clock = clock
        self.losses = EngineLosses(now)
        self.step = IDLE
        self.epoch = 0
        self.swapping_to = ""  # settings digest of the engine that starts beside ours; "" = none does
        self.wants_engine = True  # False: STANDBY, or on the way there
        self.died_in = State.STARTING  # the state in which the last engine was lost
        self.is_ending = False
        self.died = asyncio.Event()  # it died, and is not started again
        self.end_wanted = asyncio.Event()  # Shutdown was called
        if grants.standing.needs_grant or self.settings.starts_in_standby:
            self.wants_engine = False
            self.stand_by(0.0)

    def __repr__(self) -> str:
        return f"Worker({self.board!r}, {self.requests!r}, epoch={self.epoch})"

    @property
    def settings(self) -> FrontSettings:
        """Return what the front serves with; a swap changes it."""
        return self.served.edition.front

    @property
    def is_healthy(self) -> bool:
        """Return False when a restart of the whole worker would help: the engine died for good, or is stuck.

        A swap ends by itself, and a restart would lose both engines.
        """
        return not self.died.is_set() and (bool(self.swapping_to) or not self.engine_overdue)

    @property
    def engine_timeout_s(self) -> float:
        """Return how long the engine may be silent."""
        return self.served.edition.engine_limits.silence_s

    @property
    def engine_overdue(self) -> str:
        """Return what the engine takes too long for, "" while it does not; a dead one is not late."""
        if not self.link.is_alive:
            return ""
        pursuit = Watchdog(self.board.state, self.link.age_s, self.link.silence_s, self.link.running_command)
        return overdue(pursuit, self.served.edition.engine_limits)

    @property
    def words(self) -> str:
        """Return in which state the worker is, and why where there is a reason."""
        words = f"the worker is {describe(self.board.state, self.board.engine.sleep_level)}"
        failure, model = self.board.failure, self.served.edition.model
        if failure:
            return f"{words}: {failure.reason}: {failure.message}"
        return f"{words}: {model.reason}: {model}" if isinstance(model, WorkerError) else words

    def status(self) -> control.WorkerStatus:
        """Return everything that holds now."""
        counts = Counts(self.epoch, self.requests.num_accepted, self.requests.num_running, self.requests.num_waiting)
        status = to_status(self.board, self.served.edition.identity, counts)
        status.swapping_to = self.swapping_to
        status.loras_digest, status.loras_version = self.adapters.asked_as, self.adapters.version
        self.grants.tell(status)
        tell_losses(status, self.losses)
        return status

    def check_admission(self, caller: Caller | None = None, *, again: bool = False) -> None:
        """Raise CallError UNAVAILABLE unless READY or as `LateDoor` says, RESOURCE_EXHAUSTED when the queue is full."""
        state = self.board.state
        if self.late_door.lets_in(caller, again=again):
            pass
        elif self.is_ending:
            raise CallError(grpc.StatusCode.UNAVAILABLE, "the worker is shutting down", RETRY_AFTER_S[State.DRAINING])
        elif state is not State.READY:
            raise CallError(grpc.StatusCode.UNAVAILABLE, self.words, RETRY_AFTER_S[state])
        self.requests.check_room()

    def take_epoch(self, epoch: int) -> None:
        """Remember the operator's epoch.

        Raises CallError: FAILED_PRECONDITION for an older one, INVALID_ARGUMENT for one that no operator can have: none
        could ever outrank it.
        """
        if epoch > MAX_EPOCH:
            words = f"epoch is {epoch}; allowed are 0 to {MAX_EPOCH}, as many as the operator's Lease counts"
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, words)
        if epoch < self.epoch:
            words = f"epoch is {epoch}, but this worker has seen {self.epoch}; the caller is no longer the leader"
            raise CallError(grpc.StatusCode.FAILED_PRECONDITION, words)
        if epoch > self.epoch:
            self.epoch = epoch
            self.changes.notify()

    async def command(self, command: Command) -> int | str:
        """Have the engine carry out a command; return its value. Raises CallError with the engine's refusal."""
        try:
            result = await self.link.command(command)
        except EngineLost as error:
            raise CallError(
                grpc.StatusCode.UNAVAILABLE, f"{command.method}: {error}", RETRY_AFTER_S[State.FAILED]
            ) from error
        if result.error_reason:
            raise to_error(command.method, result)
        return result.value

    @property
    def is_idle(self) -> bool:
        """Return whether no request is in flight, and nobody is let in any more while it drains."""
        return len(self.requests) == 0 and not self.late_door.is_open

    async def until_idle(self) -> None:
        """Wait until it is."""
        await self.load_changes.until(lambda: self.is_idle)

    def start_draining(self, *, takes_late: bool = False) -> bool:
        """Refuse new requests from now on; return whether that is news. `takes_late`: see `LateDoor`."""
        if is_news := self.board.start_draining():
            self.link.send(Leave(is_leaving=True, to_peers=bool(self.settings.gateway_key)))
        if not takes_late:
            self.late_door.shut()
        elif is_news and self.settings.local_socket:
            self.late_door.open()
        self.load_changes.notify()
        return is_news

    def reopen(self) -> None:
        """End a draining, which also cancels a sleep that waits for it."""
        if self.board.state is State.DRAINING:
            self.link.send(Leave(is_leaving=False))
        self.board.stop_draining()
        self.load_changes.notify()

    def begin_end(self) -> None:
        """Refuse new requests for good."""
        self.is_ending = True
        self.start_draining(takes_late=True)

    def begin_swap(self, digest: str) -> None:
        """Say that another engine starts beside ours; until `end_swap` a dead one is not started again."""
        self.swapping_to = digest
        self.changes.notify()

    def end_swap(self) -> None:
        """Say that it is decided which engine serves."""
        self.swapping_to = ""
        self.changes.notify()

    def stand_by(self, seconds: float) -> None:
        """Say that there is no engine, nor wanted. seconds: see `StatusBoard.stand_by`."""
        self.wants_engine = False
        self.adapters.note_engine_lost()
        self.grants.end()
        self.board.stand_by(seconds)
        self.metrics.on_status(self.board.engine)
        self.load_changes.notify()

    def leave_standby(self) -> None:
        """Say that an engine is wanted again; its keeper starts it."""
        self.wants_engine, self.died_in = True, State.STARTING
        self.board.restart()
        self.metrics.on_status(self.board.engine)

    def adopt(self, edition: EngineConfig, link: EngineLink, status: EngineStatus) -> None:
        """Follow another engine and its settings from now on. Nothing runs, and the old engine has ended."""
        assert len(self.requests) == 0, "closed and drained before"
        if edition.model_name != self.served.edition.model_name:  # it labels every series
            self.metrics = self.requests.events = WorkerMetrics(edition.model_name, clock=self.clock)
            self.metrics.follow_engine(self._engine_silence_s)
            self._follow_adapters()
        self.served.close()
        self.served.edition = edition
        self.adapters.note_engine_lost()
        self.link = link
        self.board.replace(status)
        self.kv_events.follow(status)
        self.metrics.on_status(status)

    def on_status(self, status: EngineStatus) -> None:
        """See `EngineEvents`."""
        self.board.apply(status)
        self.kv_events.follow(status)
        self.metrics.on_status(self.board.engine)
        if status.state is not State.READY:
            self._take_load(IDLE)
            self.requests.fail_all(f"the worker is {describe(self.board.state, status.sleep_level)}")
        self.load_changes.notify()

    def on_outputs(self, outputs: StepOutputs) -> None:
        """See `EngineEvents`."""
        self._take_load(outputs)
        self.kv_events.publish(outputs.kv_events)
        self.requests.route(outputs)

    def on_lost(self) -> None:
        """See `EngineEvents`: every caller is told at once, and nobody is admitted until a new engine is READY."""
        self._take_load(IDLE)
        self.kv_events.clear()
        self.adapters.note_engine_lost()
        self.grants.end()
        if not self.is_ending and self.wants_engine:
            self.died_in = self.board.state
            if self.grants.starts_again(self.died_in):  # else it stays ASLEEP until its process is gone, then STANDBY
                self.board.restart()
        self.requests.fail_all("the engine of this worker died" if not self.is_ending else "the worker shut down")

    def on_death(self, exit_code: int, last_words: str) -> None:
        """See `EngineEvents`. A device that is ill fails the worker for good: a new engine would get the same one."""
        if exit_code == EXIT_GPU_UNHEALTHY:
            self.board.fail("GPUUnhealthy", f"{last_words}; no engine is started again on this device")
            self.load_changes.notify()
        self.losses.count(exit_code, last_words, self.link.why_killed)
        self.changes.notify()

    def give_up(self, limit: str) -> None:
        """Fail for good: the engine died and may not be started again."""
        self.board.fail("EngineDied", f"{self.losses.words}; {limit}")
        self.died.set()
        self.load_changes.notify()

    def _follow_adapters(self) -> None:
        engine = self.served.edition.engine
        if engine.enable_lora:
            running, waiting = (partial(self._adapters_in_flight, running=running) for running in (True, False))
            self.metrics.follow_adapters(engine.max_loras, running, waiting)

    def _adapters_in_flight(self, *, running: bool) -> set[str]:
        return self.adapters.names_of(self.requests.adapters(running=running))

    def _engine_silence_s(self) -> float:
        return self.link.silence_s if self.link.is_alive else 0.0

    def _send(self, message: FrontMessage) -> None:
        self.link.send(message)

    def _take_load(self, step: StepOutputs) -> None:
        self.step = step
        self.metrics.on_load(step)
