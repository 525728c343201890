"""The engine process of runtime vllm: like `engine_process`, under an interpreter that has vLLM (see `launch`)."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import time

import msgspec

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.exit_codes import EXIT_BROKEN
from dormouse_worker.common.host import Host
from dormouse_worker.common.processes import die_with_parent
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.socket_transport import SocketTransport
from dormouse_worker.engine.controller import Controller
from dormouse_worker.engine.loop import EngineBroken, EngineLoop
from dormouse_worker.foreign.vllm.executor import VllmExecutor
from dormouse_worker.foreign.vllm.interface import Core
from dormouse_worker.foreign.vllm.options import variables
from dormouse_worker.model.memory.resident import ResidentMeter

logger = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> int:
    """Run one engine; return 0 when the front closed the socket or asked for the end, EXIT_BROKEN when vLLM failed."""
    parser = argparse.ArgumentParser(prog="dormouse_worker.foreign.vllm.process", description=__doc__)
    parser.add_argument("--socket", required=True, help="path of the unix socket on which the front listens")
    arguments = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the front drains and then ends us
    die_with_parent()
    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=EngineSettings)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(arguments.socket)
        return serve(settings, SocketTransport(connection))


def serve(settings: EngineSettings, transport: SocketTransport) -> int:
    """Load, measure, serve until the front is gone; return the exit code."""
    host = Host()

    def make_core() -> Core:
        cores = sorted(os.sched_getaffinity(0))[: host.num_threads(settings.threads)]
        os.environ.update(variables(settings, os.environ, cores))
        try:
            from dormouse_worker.foreign.vllm.core import VllmCore
        except ModuleNotFoundError as error:
            raise InvalidSettings(
                f"{error}: --engine-python has to name one that has vLLM, not {sys.executable}"
            ) from error
        return VllmCore(settings)

    executor = VllmExecutor(settings, make_core, ResidentMeter(host, settings))
    controller = Controller(settings, executor, send=transport.send, clock=time.monotonic)
    try:
        EngineLoop(transport, controller).run()
    except EngineBroken as error:
        logger.critical("%s", error)  # the last line is what the front repeats
        return EXIT_BROKEN
    executor.shutdown()
    return 0
