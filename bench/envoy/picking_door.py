"""A gateway with its picker as a process: `python -m bench.envoy.picking_door MODEL GRPC_PORT:HTTP_PORT…`.

As `bench.front_door`; its ports of HTTP and of the picker are the one line on standard output.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence

import uvloop

from dormouse_api.testing_tickets import GATEWAY_SEED, POD_UID
from dormouse_gateway.seeds import Seeds
from dormouse_gateway.server import Gateway
from dormouse_gateway.settings import Settings
from dormouse_gateway.testing.slices import ControlledKube
from dormouse_gateway.testing.workers import infd, pod
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS
from dormouse_kube.reflector import ObjectKey

NAME = "stand-in"
_KEY = ObjectKey("default", NAME)
_LOOK_S = 0.02


async def serve(model: str, workers: Sequence[tuple[int, int]]) -> None:
    """Be the gateway until standard input ends."""
    kube = ControlledKube()
    kube.put(INFERENCE_DEPLOYMENTS, infd(NAME, model=model, serving={"inferencePool": True}))
    for number, (port, http_port) in enumerate(workers):
        kube.put(PODS, pod(f"{NAME}-{number}", NAME, f"127.0.0.1:{port}", uid=POD_UID, http_port=http_port))
    settings = Settings(
        host="127.0.0.1", port=0, control_port=0, metrics_port=0, http_port=0, picker_port=0, lame_duck_s=0
    )
    gateway, stop = Gateway(settings, Seeds((GATEWAY_SEED,)), kube), asyncio.Event()
    ports = await gateway.start()
    running = asyncio.create_task(gateway.run(stop))
    while not ((activity := gateway.router.activity.activity(_KEY)) and activity.awake_workers == len(workers)):  # noqa: ASYNC110  # as there
        await asyncio.sleep(_LOOK_S)
    print(ports.openai, ports.picker, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    stop.set()
    await running


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    places = [tuple(map(int, word.split(":"))) for word in sys.argv[2:]]
    uvloop.run(serve(sys.argv[1], [(port, http_port) for port, http_port in places]))
