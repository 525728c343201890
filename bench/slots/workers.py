"""Real workers for the pods of fake nodes: `python -m bench.slots.workers KUBECONFIG READY`.

Does what a kubelet does of it: front and engine run as the pod's container says, on the pod's own address (see
`bench.fleet.sandbox`), come again when they end by themselves, and go with the pod. Each pod sees the folder of all
stand-in GPUs beside READY; of which it takes one, its grant says.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from bench.fleet.follow import follow
from dormouse_api.names import LABEL_DEPLOYMENT
from dormouse_gateway.testing.slices import SliceController
from dormouse_kube.api import PODS, Resource
from dormouse_kube.client import KubeClient
from dormouse_worker.common.stand_in import DEVICES_VARIABLE
from localkube.spec import Paths
from tools.bootstrap import ROOT, bare_python

MEMORY = "1Gi"  # what a cgroup would say in a pod
DEVICES = "stand-ins"
PARTS = ("api", "worker_image", ".")
AGAIN_S = 0.2  # a kubelet waits longer; who measures does not want to


@dataclass(slots=True)
class Workers:
    """The processes of every pod that runs, by its UID."""

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
        """Run the worker until the pod is gone."""
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
        workers = Workers(ready.with_name(DEVICES), logs, tasks)
        ready.touch()  # noqa: ASYNC240  # once, before anything runs
        tasks.create_task(SliceController(kube).run())  # no controllers run here
        await follow(kube, PODS, workers.see, label_selector=LABEL_DEPLOYMENT)


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], Path(sys.argv[2])))
