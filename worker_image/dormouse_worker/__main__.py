"""`python -m dormouse_worker`: reads the settings, starts the front, runs until SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

import uvloop

from dormouse_api.outlets import unhindered_outputs
from dormouse_api.threads import patient_threads
from dormouse_api.tracing import BadTracing, Tracing, start_tracing
from dormouse_worker.common.group import identity_of
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.front.app import Front
from dormouse_worker.front.conduct.spare import SpareEngine
from dormouse_worker.front.engine.spawn import (
    ENGINE_ARGV,
    runtime_spawner,
    spawn_waiting,
    subprocess_spawner,
    vllm_argv,
)
from dormouse_worker.front.flags.settings import FrontSettings, parse_settings
from dormouse_worker.front.follower.follower import FollowerFront
from dormouse_worker.front.follower.rank_spawn import RANK_ARGV, rank_spawner
from dormouse_worker.front.follower.rank_supervisor import RankKeeper
from dormouse_worker.front.telemetry.logs import set_up_logging

EXIT_CAN_NOT_START = 2


def main(argv: Sequence[str] | None = None, *, engine_argv: Sequence[str] = ENGINE_ARGV) -> None:
    """Run one worker; exit with 0 after a drain, 1 when the engine died for good, 2 when it cannot start."""
    front_settings, engine_settings = parse_settings(sys.argv[1:] if argv is None else argv, os.environ)
    with unhindered_outputs():
        _serve(front_settings, engine_settings, engine_argv)


def _serve(front_settings: FrontSettings, engine_settings: EngineSettings, engine_argv: Sequence[str]) -> NoReturn:
    set_up_logging(front_settings.log_level)
    tracing: Tracing | None = None
    try:
        tracing = _start_tracing(front_settings)
        sys.exit(uvloop.run(_run(front_settings, engine_settings, engine_argv, tracing)))
    except (BadTracing, OSError, RuntimeError) as error:
        print(f"dormouse-worker cannot run: {error}", file=sys.stderr)
        sys.exit(EXIT_CAN_NOT_START)
    finally:
        if tracing:
            tracing.close()


def _start_tracing(settings: FrontSettings) -> Tracing | None:
    instance = {"k8s_pod_uid": settings.pod_uid, "host_name": socket.gethostname()}
    return start_tracing(settings.tracing, service="dormouse-worker", **instance)


async def _run(
    front_settings: FrontSettings, engine_settings: EngineSettings, engine_argv: Sequence[str], tracing: Tracing | None
) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with patient_threads():  # gRPC starts its own with the first server
        front = _make_front(front_settings, engine_settings, engine_argv, tracing)
    try:
        await front.start()
    except BaseException:
        await front.close()
        raise
    return await front.run(stop)


def _make_front(
    front_settings: FrontSettings, engine_settings: EngineSettings, engine_argv: Sequence[str], tracing: Tracing | None
) -> Front | FollowerFront:
    """Return the front of a pod that serves, or of one that follows another."""
    place, num_ranks = front_settings.place, engine_settings.tensor_parallel_size
    if place.leads:
        is_group = num_ranks * place.num_nodes > 1
        argv = [*engine_argv, *(place.arguments() if is_group else ())]
        vllm = vllm_argv(front_settings.engine_python)
        spawn_for = runtime_spawner(
            {"dormouse": subprocess_spawner(argv, os.environ), "vllm": subprocess_spawner(vllm, os.environ)}
        )
        spare = SpareEngine(partial(spawn_waiting, argv, os.environ), sleep=asyncio.sleep)
        return Front(
            front_settings,
            engine_settings,
            spawn_for,
            spare=spare if front_settings.spare_engine else None,
            tracer=tracing.tracer if tracing else None,
        )
    ranks = range(place.node_rank * num_ranks, (place.node_rank + 1) * num_ranks)
    spawn = rank_spawner(RANK_ARGV, os.environ, engine_settings, place)
    _, pod = identity_of(os.environ)
    return FollowerFront(front_settings, RankKeeper(ranks, spawn, patience_s=place.patience_s), pod)


if __name__ == "__main__":
    main()
