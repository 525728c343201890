"""The engine process: `python -m dormouse_worker.engine_process --socket PATH`, settings as JSON on standard input.

The front listens on the unix socket, this process connects, loads, profiles and serves until the socket closes. It
dies with its parent. With `--wait` it is started ahead of its use: a first line of standard input has the settings for
which it imports, the rest is an `EngineStart`, or nothing if no engine is wanted any more.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable

import msgspec

from dormouse_worker.common.errors import GroupBroken
from dormouse_worker.common.exit_codes import EXIT_BROKEN, EXIT_GPU_UNHEALTHY, GROUP_EXITS
from dormouse_worker.common.group import GroupPlace, add_group_arguments, place_of
from dormouse_worker.common.host import Host
from dormouse_worker.common.processes import die_with_parent, end_unhealthy
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.socket_transport import SocketTransport
from dormouse_worker.common.stand_in import has_gpu
from dormouse_worker.common.start import EngineStart
from dormouse_worker.engine.controller import Controller
from dormouse_worker.engine.executor import Executor
from dormouse_worker.engine.loop import EngineBroken, EngineLoop
from dormouse_worker.executor.ahead import import_ahead
from dormouse_worker.executor.gpu_watch import GpuWatch, explain_failure
from dormouse_worker.executor.ranks.multi_process import MultiProcessExecutor
from dormouse_worker.executor.ranks.spawn import GpuRankUnhealthy
from dormouse_worker.executor.single_process import SingleProcessExecutor
from dormouse_worker.model.memory.gpu_health import GpuFault, GpuLost, HealthCheck, Nvml
from dormouse_worker.model.memory.nvml import open_nvml

logger = logging.getLogger(__name__)


def open_gpu(settings: EngineSettings) -> Nvml | None:
    """Return the device to watch; None on the CPU, without NVML, and of a group, whose ranks watch. Raises GpuLost."""
    is_group = settings.tensor_parallel_size * settings.pipeline_parallel_size > 1
    return open_nvml(os.environ.get("CUDA_VISIBLE_DEVICES")) if has_gpu(settings, os.environ) and not is_group else None


def main(argv: list[str] | None = None, *, open_gpu: Callable[[EngineSettings], Nvml | None] = open_gpu) -> int:
    """Run one engine; return 0 when the front closed the socket or asked for the end, else one of `exit_codes`."""
    parser = argparse.ArgumentParser(prog="dormouse_worker.engine_process", description=__doc__)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--socket", default="", help="path of the unix socket on which the front listens")
    how.add_argument("--wait", action="store_true", help="import what is needed and wait to be told the socket")
    add_group_arguments(parser)
    arguments = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the front drains and then ends us
    die_with_parent()
    start = _wait_for_start() if arguments.wait else _start_at_once(arguments.socket)
    if start is None:
        return 0
    settings = start.settings
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(start.socket)
        try:
            gpu = open_gpu(settings)
        except GpuLost as error:
            end_unhealthy(GpuFault(f"CUDA device {os.environ.get('CUDA_VISIBLE_DEVICES') or 0}", str(error)))
        return _serve_watched(settings, place_of(arguments), SocketTransport(connection), gpu)


def _start_at_once(socket_path: str) -> EngineStart:
    return EngineStart(socket_path, _read_settings(sys.stdin.buffer.read()))


def _wait_for_start() -> EngineStart | None:
    """Import what engines with the settings of the first line need; return the start, None if there is none."""
    import_ahead(_read_settings(sys.stdin.buffer.readline()), os.environ, Host())
    words = sys.stdin.buffer.read()
    return msgspec.json.decode(words, type=EngineStart) if words else None


def _read_settings(words: bytes) -> EngineSettings:
    return msgspec.json.decode(words, type=EngineSettings)


def _serve_watched(settings: EngineSettings, place: GroupPlace, transport: SocketTransport, gpu: Nvml | None) -> int:
    check = HealthCheck(gpu) if gpu is not None else None
    watch = GpuWatch(check, end_unhealthy) if check else None
    if watch:
        watch.start()
    try:
        _serve(settings, place, transport)
    except GroupBroken as error:  # what is left of the group dies with us
        logger.critical("%s: %s", error.reason, error)
        return EXIT_GPU_UNHEALTHY if isinstance(error, GpuRankUnhealthy) else GROUP_EXITS[error.reason]
    except EngineBroken as error:
        if check and (fault := explain_failure(check, time.sleep)):
            end_unhealthy(fault)
        logger.critical("%s", error)  # the last line is what the front repeats
        return EXIT_BROKEN
    finally:
        if watch:
            watch.stop()
    return 0


def _serve(settings: EngineSettings, place: GroupPlace, transport: SocketTransport) -> None:
    executor = _make_executor(settings, place)
    controller = Controller(settings, executor, send=transport.send, clock=time.monotonic)
    try:
        EngineLoop(transport, controller).run()
    except (EngineBroken, GroupBroken):
        executor.abandon()
        raise
    executor.shutdown()  # not after EngineBroken: a device that does not compute may hang in it


def _make_executor(settings: EngineSettings, place: GroupPlace) -> Executor:
    """Return who drives the ranks: a group's are processes of their own, a single one computes here."""
    if settings.tensor_parallel_size * settings.pipeline_parallel_size > 1:
        return MultiProcessExecutor(settings, os.environ, place)
    return SingleProcessExecutor(settings, os.environ, Host())


if __name__ == "__main__":
    sys.exit(main())
