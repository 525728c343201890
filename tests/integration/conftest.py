"""Real worker processes on this machine: front and engine, a real model, real gRPC; no cluster."""

from __future__ import annotations

import os
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dormouse_api.names import Role
from dormouse_api.testing_tickets import POD_UID, environment, proof
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as inference_rpc
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_api.v1 import worker_control_pb2_grpc as control_rpc
from tests.ports import free_port
from tests.waiting import wait_for
from tools.bootstrap import ROOT, bare_python

EPOCH = 1
PATIENCE_S = 120.0  # how long a wait lasts before the test fails


def is_engine(pid: int) -> bool:
    """Return whether a process is an engine's, or waits to be; False for one that ended."""
    try:
        return b"dormouse_worker.engine_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


class Worker:
    """One worker: its processes and the two doors to it."""

    def __init__(
        self,
        model: Path,
        log: IO[bytes],
        *flags: str,
        prefix: Sequence[str] = (),
        pod_uid: str = POD_UID,
        port: int = 0,
    ) -> None:
        self.model = model
        self.port, self.control_port, self.metrics_port = port or free_port(), free_port(), free_port()
        self.pod_uid = pod_uid
        command = [bare_python(), "-m", "dormouse_worker", "--model", str(model), "--served-model-name", "tiny"]
        command += ["--device", "cpu", "--dtype", "float32", "--max-model-len", "512", "--memory-limit", "2Gi"]
        command += ["--max-num-seqs", "8", "--max-num-batched-tokens", "128", "--port", str(self.port)]
        command += ["--control-port", str(self.control_port), "--metrics-port", str(self.metrics_port), *flags]
        self.arguments = command[3:]
        env = {
            **os.environ,
            **environment(pod_uid),
            "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("api", "worker_image", ".")),
        }
        self.process = subprocess.Popen([*prefix, *command], env=env, stdout=log, stderr=log)
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.port}")
        self.control_channel = grpc.insecure_channel(f"127.0.0.1:{self.control_port}")
        self.inference = inference_rpc.InferenceStub(self.channel)
        self.control = control_rpc.WorkerControlStub(self.control_channel)

    def close(self) -> None:
        """End the worker and its channels."""
        self.channel.close()
        self.control_channel.close()
        self.process.terminate()
        self.process.wait(PATIENCE_S)

    def operate(self, method: str, request: object, timeout_s: float = PATIENCE_S) -> object:
        """Call WorkerControl in the operator's role."""
        call = getattr(self.control, method)
        return call(request, timeout=timeout_s, metadata=proof(Role.OPERATOR, self.pod_uid), wait_for_ready=True)

    def report(self) -> control.MemoryReport:
        """Return what the profile run measured, waiting until it is there."""
        request = control.DetermineNumAvailableBlocksRequest(epoch=EPOCH)
        return self.operate("DetermineNumAvailableBlocks", request)  # type: ignore[return-value]

    def start(self) -> control.WorkerStatus:
        """Agree with itself: allocate what it reported."""
        blocks = min(self.report().num_gpu_blocks, 2048)
        request = control.InitializeCacheRequest(epoch=EPOCH, num_gpu_blocks=blocks)
        return self.operate("InitializeCache", request)  # type: ignore[return-value]

    def status(self) -> control.WorkerStatus:
        """Return the worker's status."""
        return self.operate("GetStatus", control.GetStatusRequest())  # type: ignore[return-value]

    def until(
        self, holds: Callable[[control.WorkerStatus], object], timeout_s: float = PATIENCE_S
    ) -> control.WorkerStatus:
        """Return the first status of which this holds. Raises RpcError DEADLINE_EXCEEDED when the time is over."""
        watch = self.control.WatchStatus(
            control.GetStatusRequest(),
            timeout=timeout_s,
            metadata=proof(Role.OPERATOR, self.pod_uid),
            wait_for_ready=True,
        )
        found: control.WorkerStatus = next(status for status in watch if holds(status))
        watch.cancel()
        return found

    def children(self) -> list[int]:
        """Return the pids of the front's processes, in the order of their start."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def running_engines(self) -> list[int]:
        """Return the pids of its engines that there are now, and of spare ones."""
        return [pid for pid in self.children() if is_engine(pid)]

    def engine(self) -> int:
        """Return the pid of its engine, waiting until it is started."""
        return wait_for(self.children, "no engine was started")[0]

    def engines(self, number: int) -> list[int]:
        """Return the pids of its engine and of spare ones, in the order of their start, once there are so many."""
        found: list[int] = []

        def are_there() -> bool:
            found[:] = self.running_engines()
            return len(found) == number

        wait_for(are_there, lambda: f"{len(found)} engines; {number} were awaited")
        return found

    def health(self, service: str) -> int:
        """Return the gRPC health of a service."""
        stub = health_pb2_grpc.HealthStub(self.channel)
        status: int = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=90, wait_for_ready=True).status
        return status

    def page(self, path: str = "metrics") -> str:
        """Return a page of its metrics port."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/{path}", timeout=60) as answer:
            text: str = answer.read().decode()
        return text

    def greedy(self, prompt_token_ids: list[int], max_tokens: int) -> list[int]:
        """Return the greedy tokens of a prompt."""
        return [t for m in self.stream(prompt_token_ids, max_tokens=max_tokens, temperature=0) for t in m.token_ids]

    def stream(self, prompt_token_ids: list[int], **sampling: object) -> grpc.Call:
        """Begin a stream."""
        params = pb.SamplingParams(**sampling)  # type: ignore[arg-type]
        request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt_token_ids), sampling_params=params)
        return self.inference.Generate(request, timeout=60)


@pytest.fixture(scope="module")
def start_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Worker]]:
    """Start workers that end with the module; their logs lie in the test's folder."""
    workers: list[Worker] = []
    log_path = tmp_path_factory.mktemp("worker") / "log"
    with log_path.open("wb") as log:

        def start(model: Path, *flags: str, prefix: Sequence[str] = (), pod_uid: str = POD_UID) -> Worker:
            workers.append(Worker(model, log, *flags, prefix=prefix, pod_uid=pod_uid))
            return workers[-1]

        yield start
        for worker in workers:
            worker.close()


@pytest.fixture(scope="module")
def worker(start_worker: Callable[..., Worker], tiny_model: Path) -> Worker:
    """A worker with the small model, ready to serve."""
    worker = start_worker(tiny_model)
    worker.start()
    return worker
