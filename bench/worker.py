"""Starts a worker for real and does what its operator would: waits for the report, agrees on the blocks."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc

from bench.helpers import environment
from dormouse_api import testing_tickets
from dormouse_api.limits import channel_options
from dormouse_api.names import Role
from dormouse_api.tickets import Proof
from dormouse_api.v1 import inference_pb2_grpc as inference_rpc
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_api.v1 import worker_control_pb2_grpc as control_rpc

EPOCH = 1
MAX_BLOCKS = 4096  # of 16 tokens: every sequence of a workload has room, and more would only be memory
START_TIMEOUT_S = 300.0
DRAIN_STEP_S = 2.0  # as the operator's
FLAGS = ("--max-model-len", "2048", "--memory-limit", "10Gi", "--log-level", "WARNING", "--host", "127.0.0.1")
WORKER = ("-m", "dormouse_worker")


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def free_port_pair() -> int:
    """Return the first of two such ports beside each other, as a group wants them."""
    while True:
        port = free_port()
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port + 1))
            return port


class Worker:
    """One worker: its front's process and the doors to it. `program` is what Python runs.

    Its cache has no more than `max_blocks` (None: all that it reports), its environment these `variables` more.
    """

    def __init__(
        self,
        model: Path,
        *,
        program: Sequence[str] = WORKER,
        flags: Sequence[str] = (),
        max_blocks: int | None = MAX_BLOCKS,
        variables: Mapping[str, str] | None = None,
        pod_uid: str = testing_tickets.POD_UID,
    ) -> None:
        self._max_blocks, self._pod_uid = max_blocks, pod_uid
        self.port, self.control_port, metrics_port = free_port(), free_port(), free_port()
        ports = {"--port": self.port, "--control-port": self.control_port, "--metrics-port": metrics_port}
        command = [sys.executable, *program, "--model", str(model), *FLAGS, *flags]
        command += [word for flag, port in ports.items() for word in (flag, str(port))]
        env = {**environment(), **testing_tickets.environment(pod_uid), **(variables or {})}
        self.process = subprocess.Popen(command, env=env)
        self._channels = [self._open(self.port), self._open(self.control_port)]
        self.inference = inference_rpc.InferenceStub(self._channels[0])
        self._control = control_rpc.WorkerControlStub(self._channels[1])

    def __repr__(self) -> str:
        return f"Worker(pid={self.process.pid}, port={self.port})"

    def close(self) -> None:
        """End the worker and the channels."""
        for channel in self._channels:
            channel.close()
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def statuses(self) -> Iterator[control.WorkerStatus]:
        """Yield the status at once and after every change. Raises RuntimeError when the worker failed."""
        for status in self._control.WatchStatus(
            control.GetStatusRequest(),
            timeout=START_TIMEOUT_S,
            metadata=self._proof(),
            wait_for_ready=True,
        ):
            if status.state == control.WORKER_STATE_FAILED:
                raise RuntimeError(f"the worker failed: {status.failure.reason}: {status.failure.message}")
            yield status

    def initialize_cache(self, report: control.MemoryReport) -> None:
        """Agree with itself on the blocks that it reported, no more than its most."""
        blocks = report.num_gpu_blocks if self._max_blocks is None else min(report.num_gpu_blocks, self._max_blocks)
        request = control.InitializeCacheRequest(epoch=EPOCH, num_gpu_blocks=blocks)
        self._control.InitializeCache(request, timeout=START_TIMEOUT_S, metadata=self._proof())

    def sleep(self, level: int) -> None:
        """Have it sleep once nothing runs."""
        request = control.SleepRequest(epoch=EPOCH, level=level)
        self._control.Sleep(request, timeout=START_TIMEOUT_S, metadata=self._proof())

    def wake_up(self) -> None:
        """Have it wake; from STANDBY it has to be opened again."""
        request = control.WakeUpRequest(epoch=EPOCH)
        self._control.WakeUp(request, timeout=START_TIMEOUT_S, metadata=self._proof())

    def drain(self) -> None:
        """Have it finish what it runs and take nothing more, as the operator does before it deletes the pod."""
        request = control.DrainRequest(epoch=EPOCH, timeout_seconds=DRAIN_STEP_S)
        while self._control.Drain(request, timeout=START_TIMEOUT_S, metadata=self._proof()).remaining_requests:
            pass

    def give_up(self) -> None:
        """Have it end what it runs, as where that goes on elsewhere, and serve again."""
        request = control.PrepareSleepRequest(epoch=EPOCH, level=1, mode=control.DRAIN_MODE_ABORT)
        self._control.PrepareSleep(request, timeout=START_TIMEOUT_S, metadata=self._proof())
        self.wake_up()

    def open(self) -> None:
        """Wait until the worker was profiled and make it READY."""
        for status in self.statuses():
            if status.state == control.WORKER_STATE_PROFILED:
                self.initialize_cache(status.report)
                return
        raise RuntimeError("the worker ended before it was profiled")

    def _proof(self) -> Proof:
        return testing_tickets.proof(Role.OPERATOR, self._pod_uid)

    def _open(self, port: int) -> grpc.Channel:
        return grpc.insecure_channel(f"127.0.0.1:{port}", options=channel_options())


@contextmanager
def ready_worker(
    model: Path,
    *,
    program: Sequence[str] = WORKER,
    flags: Sequence[str] = (),
    max_blocks: int | None = MAX_BLOCKS,
    variables: Mapping[str, str] | None = None,
    pod_uid: str = testing_tickets.POD_UID,
) -> Iterator[Worker]:
    """A worker that serves, ended with the block."""
    worker = Worker(model, program=program, flags=flags, max_blocks=max_blocks, variables=variables, pod_uid=pod_uid)
    try:
        worker.open()
        yield worker
    finally:
        worker.close()
