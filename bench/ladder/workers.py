"""The stand-in workers of all pods in one process: `python -m bench.ladder.workers KUBECONFIG READY`.

Each pod has its worker, which listens on the pod's own address (see `bench.fleet.sandbox`) and only as long as the pod
is there. What they do stands in the journal beside READY.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from bench.fleet.follow import follow
from bench.ladder.journal import JournalWriter
from bench.ladder.stand_in import StandIn, pace_of
from dormouse_api.names import LABEL_DEPLOYMENT, LABEL_REVISION
from dormouse_gateway.testing.slices import SliceController
from dormouse_kube.api import PODS, Resource
from dormouse_kube.client import KubeClient
from dormouse_operator.testing.fake_worker import FakeWorker

JOURNAL = "journal.jsonl"


@dataclass(slots=True)
class Workers:
    """A worker for every pod that runs, by its UID."""

    journal: JournalWriter
    tasks: asyncio.TaskGroup
    lives: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    starts: Counter[str] = field(default_factory=Counter)  # by deployment

    def see(self, pod: Resource, is_gone: bool) -> None:  # noqa: FBT001  # as `follow` calls it
        """Take note of a pod's change."""
        uid, address = pod["metadata"]["uid"], (pod.get("status") or {}).get("podIP", "")
        if is_gone and uid in self.lives:
            self.lives.pop(uid).cancel()
        elif address and not is_gone and uid not in self.lives:
            self.lives[uid] = self.tasks.create_task(self._make(pod).live(address))

    def _make(self, pod: Resource) -> StandIn:
        labels = pod["metadata"]["labels"]
        deployment = labels[LABEL_DEPLOYMENT]
        self.starts[deployment] += 1
        worker = FakeWorker(pod["metadata"]["uid"], labels.get(LABEL_REVISION, ""))
        return StandIn(deployment, worker, pace_of(deployment, self.starts[deployment]), self.journal)


async def serve(kubeconfig: str, ready: Path) -> None:
    """Be the workers until cancelled; make the file `ready` when pods are followed."""
    async with await KubeClient.connect(kubeconfig=kubeconfig) as kube, asyncio.TaskGroup() as tasks:
        workers = Workers(JournalWriter(ready.with_name(JOURNAL)), tasks)
        ready.touch()  # noqa: ASYNC240  # once, before anything is served
        tasks.create_task(SliceController(kube).run())  # no controllers run here
        await follow(kube, PODS, workers.see, label_selector=LABEL_DEPLOYMENT)


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], Path(sys.argv[2])))
