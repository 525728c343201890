"""A gateway as it is, before workers of this machine: `python -m bench.front_door MODEL PORT…`.

Kubernetes is in memory and says that there is an InferenceDeployment with a pod for each, at these ports of loopback;
of one that is PORT/UID/ROLE with this UID and, unless it is empty, role.
Its ports of gRPC and HTTP are the one line on standard output; it ends with standard input.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import uvloop

from bench.helpers import environment
from dormouse_api.testing_tickets import GATEWAY_SEED, POD_UID
from dormouse_gateway.activity import Activity
from dormouse_gateway.seeds import Seeds
from dormouse_gateway.server import Gateway
from dormouse_gateway.settings import Settings
from dormouse_gateway.testing.slices import ControlledKube
from dormouse_gateway.testing.workers import infd, pod
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS

POLL_S = 0.02
START_TIMEOUT_S = 60.0
NAME = "stand-in"  # of the deployment


@dataclass(frozen=True, slots=True)
class Door:
    """A gateway that serves."""

    pid: int
    port: int
    http_port: int


@contextmanager
def open_door(model: str, *worker_ports: int | str) -> Iterator[Door]:
    """A gateway before these workers, ended with the block. Raises RuntimeError if it does not start."""
    command = [sys.executable, "-m", "bench.front_door", model, *map(str, worker_ports)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the gateway ended with {process.wait()}: see its words above")
            yield Door(process.pid, *map(int, line.split()))
        finally:
            process.stdin.close()


async def serve(model: str, places: Sequence[str]) -> None:
    """Be the gateway until standard input ends. Raises TimeoutError if it does not hear of all workers."""
    kube = ControlledKube()
    kube.put(INFERENCE_DEPLOYMENTS, infd(NAME, model=model))
    for number, place in enumerate(places):
        port, uid, role = place.split("/") if "/" in place else (place, POD_UID, "")
        made = pod(f"{NAME}-{number}", NAME, f"127.0.0.1:{port}", uid=uid)
        made["metadata"]["labels"] |= {"role": role} if role else {}
        kube.put(PODS, made)
    settings = Settings(host="127.0.0.1", port=0, control_port=0, metrics_port=0, http_port=0, lame_duck_s=0)
    gateway, stop = Gateway(settings, Seeds((GATEWAY_SEED,)), kube), asyncio.Event()
    ports = await gateway.start()
    running = asyncio.create_task(gateway.run(stop))
    async with asyncio.timeout(START_TIMEOUT_S):
        while sum(load.awake_workers for load in _activities(gateway)) < len(places):  # noqa: ASYNC110  # nobody tells of it
            await asyncio.sleep(POLL_S)
    print(ports.inference, ports.openai, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    stop.set()
    await running


def _activities(gateway: Gateway) -> Iterator[Activity]:
    for deployment in gateway.router.catalogue.deployments():
        activity = gateway.router.activity.activity(deployment.key)
        if activity:
            yield activity


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    uvloop.run(serve(sys.argv[1], sys.argv[2:]))
