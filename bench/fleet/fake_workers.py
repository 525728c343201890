"""The workers of all pods in one process: `python -m bench.fleet.fake_workers KUBECONFIG READY`.

Those of a pool's members wait in STANDBY, the others have loaded.

One server listens on every address of the sandbox. Whose pod is called shows in the caller's own address: who connects
to a local route without a source of its own has the address that it called (see `sandbox`). A pod's UID and settings
digest are learnt from a watch, as a kubelet learns them; a call that comes before the watch has told waits for it.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from bench.fleet.cluster import OPERATOR_SEED
from bench.fleet.follow import follow
from dormouse_api.names import CONTROL_PORT, LABEL_DEPLOYMENT, LABEL_POOL, LABEL_REVISION
from dormouse_kube.api import PODS, Resource
from dormouse_kube.client import KubeClient
from dormouse_operator.model import WorkerState
from dormouse_operator.testing.fake_worker import FakeWorker
from dormouse_operator.testing.grpc import serve_found
from dormouse_operator.testing.pooled import PooledWorker

_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+")


@dataclass(slots=True)
class Workers:
    """A worker for every pod that has an address; it has loaded and profiled when it is first heard of."""

    by_address: dict[str, FakeWorker] = field(default_factory=dict)
    awaited: dict[str, asyncio.Event] = field(default_factory=dict)

    def see(self, pod: Resource, is_gone: bool) -> None:  # noqa: FBT001  # as `follow` calls it
        """Take note of a pod's change. An address may belong to another pod by now."""
        uid, address = pod["metadata"]["uid"], (pod.get("status") or {}).get("podIP", "")
        known = self.by_address.get(address)
        if is_gone and known is not None and known.pod_uid == uid:
            del self.by_address[address]
        elif address and not is_gone and (known is None or known.pod_uid != uid):
            self.by_address[address] = _begun(pod["metadata"])
            self.awaited.pop(address, asyncio.Event()).set()

    async def find(self, context: Any) -> FakeWorker:
        """Return the worker that a call is for; waits until there is one, as long as the caller does."""
        address = called_address(context.peer())
        while address not in self.by_address:
            await self.awaited.setdefault(address, asyncio.Event()).wait()
        return self.by_address[address]


def called_address(peer: str) -> str:
    """Return the address in gRPC's name of a caller, for example ipv4:10.200.0.7:43210. Raises ValueError."""
    found = _ADDRESS.search(peer)
    if found is None:
        raise ValueError(f"the caller is {peer!r}; expected is an IPv4 address and a port")
    return found[0]


def _begun(metadata: Mapping[str, Any]) -> FakeWorker:
    """Return the pod's worker as far as it comes by itself."""
    if LABEL_POOL in metadata["labels"]:
        return PooledWorker(metadata["uid"], metadata["labels"].get(LABEL_REVISION, ""), state=WorkerState.STANDBY)
    worker = FakeWorker(metadata["uid"], metadata["labels"].get(LABEL_REVISION, ""))
    worker.finish_loading()
    return worker


async def serve(kubeconfig: str, ready: Path) -> None:
    """Be the workers until cancelled; make the file `ready` when they can be called."""
    workers = Workers()
    async with (
        await KubeClient.connect(kubeconfig=kubeconfig) as kube,
        serve_found(workers.find, OPERATOR_SEED, f"0.0.0.0:{CONTROL_PORT}", look_s=None),
    ):
        ready.touch()  # noqa: ASYNC240  # once, before anything is served
        await follow(kube, PODS, workers.see, label_selector=LABEL_DEPLOYMENT)


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], Path(sys.argv[2])))
