"""Plays scheduler and kubelet like `kubelet`, but starts the worker's real program for each pod, with a real model."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from dormouse_api.names import METRICS_PORT
from dormouse_kube.api import KubeApi, Resource
from dormouse_operator.model import WorkerState
from tests.faults.kubelet import ProcessKubelet, RunningPod, _now
from tests.faults.programs import Program, clean_environment

_MEMORY = "2Gi"  # what a cgroup would say in a pod


class WorkerProgram:
    """One worker: front and engine. `state` is what a readiness probe last said."""

    def __init__(self, pod: Resource, address: str, model: Path, log: Path) -> None:
        """Start it as the pod's container says, but for where the model lies."""
        container = pod["spec"]["containers"][0]
        named = {item["name"]: item["value"] for item in container["env"] if "value" in item}
        arguments = [arg for arg in container["args"] if not arg.startswith("--model=")]
        arguments += [f"--model={model}", f"--host={address}", f"--memory-limit={_MEMORY}"]
        environment = clean_environment(**named, DORMOUSE_POD_UID=pod["metadata"]["uid"])
        self.program = Program([sys.executable, "-m", "dormouse_worker", *arguments], log=log, env=environment)
        self.address = f"{address}:{METRICS_PORT}"
        self.state = WorkerState.STARTING

    def __repr__(self) -> str:
        """Show the process."""
        return f"WorkerProgram({self.program!r}, {self.state})"

    async def probe(self, session: aiohttp.ClientSession) -> None:
        """Ask whether it is ready, as a kubelet does."""
        try:
            async with session.get(f"http://{self.address}/readyz", timeout=aiohttp.ClientTimeout(2)) as answer:
                self.state = WorkerState.READY if answer.status == 200 else WorkerState.LOADING
        except (aiohttp.ClientError, TimeoutError):
            self.state = WorkerState.STARTING

    async def is_busy(self) -> bool:
        """Return whether its engine computes requests."""
        async with aiohttp.ClientSession() as session, session.get(f"http://{self.address}/metrics") as answer:
            families = text_string_to_metric_families(await answer.text())
        return any(f.samples[0].value > 0 for f in families if f.name == "vllm:num_requests_running")

    def kill_engine(self) -> None:
        """End its engine by SIGKILL; the front starts another."""
        children = Path(f"/proc/{self.program.pid}/task/{self.program.pid}/children").read_text("ascii")
        os.kill(int(children.split()[0]), signal.SIGKILL)


class WorkerKubelet(ProcessKubelet):
    """Runs the pods of one namespace as processes of this machine."""

    def __init__(
        self, kube: KubeApi, namespace: str, on_change: Callable[[], None], *, model: Path, logs: Path
    ) -> None:
        """Take the API as the node sees it, whom to tell of every change, and where model and logs lie."""
        super().__init__(kube, namespace, "", on_change)
        self._model = model
        self._logs = logs

    async def _start(self, pod: Resource) -> None:
        metadata = pod["metadata"]
        address = await self._place(pod)
        worker = WorkerProgram(pod, address, self._model, self._logs / f"{metadata['name']}.log")
        stack = AsyncExitStack()
        stack.push_async_callback(asyncio.to_thread, worker.program.end)
        self._running[metadata["uid"]] = RunningPod(metadata["name"], address, worker, stack, _now())
        self.starts[metadata["name"]] += 1

    async def _report(self, pod: Resource, running: RunningPod) -> None:
        async with aiohttp.ClientSession() as session:
            await running.worker.probe(session)
        await super()._report(pod, running)
