"""All that a stand-in worker knows: one lock guards it, and who waits for a change waits for `changed`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc

from dormouse_api.capabilities import Capability
from dormouse_api.limits import MAX_EPOCH
from dormouse_api.names import Role
from dormouse_api.status import CallError
from dormouse_api.tickets import TicketCheck
from dormouse_api.v1 import worker_control_pb2 as control

STARTING, LOADING, PROFILED, INITIALIZING, READY, DRAINING, ASLEEP, WAKING, FAILED, STANDBY = range(1, 11)
INVALID, UNMET = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION
LOAD_S = 0.01
MODEL_LEN, VOCAB, BLOCK_SIZE, BLOCK_BYTES, BLOCKS = 200, 300, 16, 1024, 64
TAGS = {"weights", "kv_cache"}


def name_of(state: int) -> str:
    return control.WorkerState.Name(state).removeprefix("WORKER_STATE_").lower()


@dataclass(slots=True)
class Worker:
    """All that the worker knows."""

    proofs: TicketCheck
    pod_uid: str
    claims: frozenset[Capability] = frozenset(Capability)
    changed: threading.Condition = field(default_factory=threading.Condition)
    state: int = STARTING
    epoch: int = 0
    agreed: int = 0
    allocated: int = 0
    level: int = 0
    accepted: int = 0
    running: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    cached: set[tuple[int, ...]] = field(default_factory=set)
    weights: int = 7
    is_closed: bool = False

    def become(self, state: int) -> None:
        with self.changed:
            self.state = state
            self.changed.notify_all()

    def load(self) -> None:
        """Start an engine, which is PROFILED some time later."""
        self.become(LOADING)
        threading.Timer(LOAD_S, self.become, [PROFILED]).start()

    def wait_for(self, holds: Callable[[], object], timeout_s: float = 30.0) -> bool:
        """Wait for it, with the lock held."""
        return bool(self.changed.wait_for(lambda: holds() or self.is_closed, timeout_s))

    def require(self, *states: int) -> None:
        if self.state not in states:
            raise CallError(UNMET, f"needs {' or '.join(map(name_of, states))}; the worker is {name_of(self.state)}")

    def take_epoch(self, epoch: int) -> None:
        if epoch > MAX_EPOCH:
            raise CallError(INVALID, f"epoch is {epoch}; at most {MAX_EPOCH}")
        if epoch < self.epoch:
            raise CallError(UNMET, f"epoch is {epoch}, but {self.epoch} was seen")
        self.epoch = epoch

    def role_of(self, context: Any) -> Role:
        return self.proofs.role_of(context.invocation_metadata())

    def report(self) -> control.MemoryReport:
        return control.MemoryReport(
            total_bytes=BLOCKS * BLOCK_BYTES * 2,
            kv_cache_bytes=BLOCKS * BLOCK_BYTES,
            block_bytes=BLOCK_BYTES,
            block_size=BLOCK_SIZE,
            num_gpu_blocks=BLOCKS,
            max_model_len=MODEL_LEN,
        )

    def status(self) -> control.WorkerStatus:
        is_known = self.state not in {STARTING, LOADING}
        return control.WorkerStatus(
            state=self.state,  # type: ignore[arg-type]  # an enum is an int
            pod_uid=self.pod_uid,
            instance="instance-1",
            epoch=self.epoch,
            request_counter=self.accepted,
            running_requests=len(self.running),
            report=self.report() if is_known else None,
            num_gpu_blocks=self.allocated,
            sleep_level=self.level,
            capabilities=sorted(self.claims),
        )

    def close_doors(self) -> None:
        if self.state == READY:
            self.become(DRAINING)

    def end_running(self, mode: int) -> None:
        if mode == control.DRAIN_MODE_ABORT:
            self.aborted |= self.running
        self.wait_for(lambda: not self.running)

    def accept(self) -> int:
        """Let a request in."""
        with self.changed:
            if self.state != READY:
                raise CallError(grpc.StatusCode.UNAVAILABLE, f"the worker is {name_of(self.state)}", 1.0)
            self.accepted += 1
            self.running.add(self.accepted)
            return self.accepted

    def free(self, number: int) -> None:
        with self.changed:
            self.running.discard(number)
            self.changed.notify_all()


def follow(worker: Worker, key: Callable[[], object], tell: Callable[[], Any], context: Any) -> Iterator[Any]:
    """Yield what is to be told, at once and then whenever the key has changed."""
    while context.is_active() and not worker.is_closed:
        with worker.changed:
            now, told = key(), tell()
        yield told
        with worker.changed:
            while key() == now and context.is_active() and not worker.is_closed:
                worker.changed.wait(0.05)
