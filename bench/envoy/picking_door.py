"""A gateway with its picker as a process: `python -m bench.envoy.picking_door MODEL GRPC_PORT:HTTP_PORT:UID…`.

As `bench.front_door`; its ports of HTTP and of the picker are a line on standard output, as soon as all workers serve.
A line `+GRPC_PORT:HTTP_PORT:UID` on standard input brings one more, which is answered by `+` once it serves; `-UID`
shuts the gate of a pod, as the operator does before it drains it, and `xUID` deletes it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence

import uvloop

from dormouse_api.testing_tickets import GATEWAY_SEED
from dormouse_gateway.seeds import Seeds
from dormouse_gateway.server import Gateway
from dormouse_gateway.settings import Settings
from dormouse_gateway.testing.slices import ControlledKube
from dormouse_gateway.testing.workers import infd, pod, set_ready
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS
from dormouse_kube.reflector import ObjectKey

NAME = "stand-in"
_KEY = ObjectKey("default", NAME)
_LOOK_S = 0.02


class Door:
    """The gateway before workers that come and go, made in a running loop; Kubernetes is in memory."""

    def __init__(self, model: str) -> None:
        """Serve this model."""
        self._kube = ControlledKube()
        self._kube.put(INFERENCE_DEPLOYMENTS, infd(NAME, model=model, serving={"inferencePool": True}))
        settings = Settings(
            host="127.0.0.1", port=0, control_port=0, metrics_port=0, http_port=0, picker_port=0, lame_duck_s=0
        )
        self._gateway = Gateway(settings, Seeds((GATEWAY_SEED,)), self._kube)
        self._count = 0

    async def serve(self, workers: Sequence[str]) -> None:
        """Be the gateway until standard input ends."""
        ports, stop = await self._gateway.start(), asyncio.Event()
        running = asyncio.create_task(self._gateway.run(stop))
        for place in workers:
            self._come(place)
        await self._all_awake()
        print(ports.openai, ports.picker, flush=True)
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            if line[0] == "-":
                self._count -= 1
                set_ready(self._kube, _pod(line[1:]), ready=False)
            elif line[0] == "x":
                await self._kube.delete(PODS, _KEY.namespace, _pod(line[1:]))
            else:
                self._come(line[1:])
                await self._all_awake()
                print("+", flush=True)
        stop.set()
        await running

    def _come(self, place: str) -> None:
        port, http_port, uid = place.split(":")
        self._count += 1
        self._kube.put(PODS, pod(_pod(uid), NAME, f"127.0.0.1:{port}", uid=uid, http_port=int(http_port)))

    async def _all_awake(self) -> None:
        activity = self._gateway.router.activity
        while not ((known := activity.activity(_KEY)) and known.awake_workers == self._count):  # noqa: ASYNC110  # as there
            await asyncio.sleep(_LOOK_S)


def _pod(uid: str) -> str:
    return f"{NAME}-{uid}"


async def main(model: str, *workers: str) -> None:
    """Be the gateway until standard input ends."""
    await Door(model).serve(workers)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    uvloop.run(main(*sys.argv[1:]))
