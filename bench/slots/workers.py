"""Real workers for the pods of fake nodes: `python -m bench.slots.workers KUBECONFIG READY`.

Does what a kubelet does of it: front and engine run as the pod's container says, on the pod's own address (see
`bench.fleet.sandbox`), are probed, come again when they end by themselves, and go with the pod. Each pod sees the
folder of all stand-in GPUs beside READY; of which it takes one, its grant says.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from bench.fleet.follow import follow
from dormouse_api.names import LABEL_DEPLOYMENT, METRICS_PORT
from dormouse_gateway.testing.slices import SliceController
from dormouse_kube.api import PODS, KubeApi, Resource
from dormouse_kube.client import KubeClient
from dormouse_kube.errors import Conflict, NotFound
from dormouse_worker.common.stand_in import DEVICES_VARIABLE
from localkube.spec import Paths
from tools.bootstrap import ROOT, bare_python

MEMORY = "1Gi"  # what a cgroup would say in a pod
DEVICES = "stand-ins"
PARTS = ("api", "worker_image", ".")
PROBE_S, PROBE_TIMEOUT_S = 0.5, 2.0
AGAIN_S = 0.2  # a kubelet waits longer; who measures does not want to


@dataclass(slots=True)
class Workers:
    """The processes of every pod that runs, by its UID."""

    kube: KubeApi
    devices: Path
    logs: Path
    tasks: asyncio.TaskGroup
    lives: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def see(self, pod: Resource, is_gone: bool) -> None:  # noqa: FBT001  # as `follow` calls it
        """Take note of a pod's change."""
        uid, address = pod["metadata"]["uid"], (pod.get("status") or {}).get("podIP", "")
        if is_gone and uid in self.lives:
            self.lives.pop(uid).cancel()
        elif address and not is_gone and uid not in self.lives:
            self.lives[uid] = self.tasks.create_task(self._live(pod, address))

    async def _live(self, pod: Resource, address: str) -> None:
        """Run the worker, and probe it, until the pod is gone."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._run(pod, address))
            tasks.create_task(self._probe(pod, f"http://{address}:{METRICS_PORT}/readyz"))

    async def _probe(self, pod: Resource, url: str) -> None:
        """Tell of each change of the worker's own word whether it takes requests, or may be asked to."""
        was_ready = True  # as KWOK has it
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PROBE_TIMEOUT_S)) as session:
            while True:
                await asyncio.sleep(PROBE_S)
                is_ready = await _answers(session, url)
                if is_ready != was_ready:
                    await self._tell(pod, is_ready=is_ready)
                was_ready = is_ready

    async def _tell(self, pod: Resource, *, is_ready: bool) -> None:
        head = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
        conditions = [{"type": "ContainersReady", "status": str(is_ready)}]
        told = {"metadata": head, "status": {"conditions": conditions}}
        with suppress(Conflict, NotFound):  # it has gone
            await self.kube.apply(PODS, told, field_manager="kubelet", subresource="status")

    async def _run(self, pod: Resource, address: str) -> None:
        command = [str(bare_python()), "-m", "dormouse_worker", *arguments_of(pod, address)]
        environment = environment_of(pod, self.devices)
        log = self.logs / f"worker-{pod['metadata']['name']}.log"
        while True:
            with log.open("ab") as output:
                process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=output, stderr=output)
            try:
                await process.wait()
            except asyncio.CancelledError:
                process.kill()
                await process.wait()
                raise
            await asyncio.sleep(AGAIN_S)


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def arguments_of(pod: Resource, address: str) -> list[str]:
    """Return the command line of the pod's worker, on its own address."""
    [container] = pod["spec"]["containers"]
    return [*container["args"], f"--host={address}", f"--memory-limit={MEMORY}", "--log-level=INFO"]


def environment_of(pod: Resource, devices: Path) -> Mapping[str, str]:
    """Return the environment of the pod's worker."""
    [container] = pod["spec"]["containers"]
    named = {item["name"]: str(item["value"]) for item in container["env"] if "value" in item}
    kept: dict[str, Any] = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    path = os.pathsep.join(str(ROOT / part) for part in PARTS)
    return {
        **kept,
        **named,
        "PYTHONPATH": path,
        "DORMOUSE_POD_UID": pod["metadata"]["uid"],
        DEVICES_VARIABLE: str(devices),
    }


async def serve(kubeconfig: str, ready: Path) -> None:
    """Run workers until cancelled; make the file `ready` when pods are followed."""
    logs = Paths(Path(kubeconfig).parents[2]).logs
    async with await KubeClient.connect(kubeconfig=kubeconfig) as kube, asyncio.TaskGroup() as tasks:
        workers = Workers(kube, ready.with_name(DEVICES), logs, tasks)
        ready.touch()  # noqa: ASYNC240  # once, before anything runs
        tasks.create_task(SliceController(kube).run())  # no controllers run here
        await follow(kube, PODS, workers.see, label_selector=LABEL_DEPLOYMENT)


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], Path(sys.argv[2])))
