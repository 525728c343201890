"""The engine process: `python -m dormouse_worker.engine_process --socket PATH`, settings as JSON on standard input.

The front listens on the unix socket, this process connects, loads, profiles and serves until the socket closes. It
dies with its parent.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import NoReturn

import msgspec

from dormouse_worker.engine.controller import Controller
from dormouse_worker.engine.loop import EngineBroken, EngineLoop
from dormouse_worker.executor.gpu_watch import GpuWatch, explain_failure
from dormouse_worker.executor.single_process import SingleProcessExecutor
from dormouse_worker.exit_codes import EXIT_BROKEN, EXIT_GPU_UNHEALTHY
from dormouse_worker.host import Host
from dormouse_worker.ipc import EngineMessage, FrameSplitter, FrontMessage, decode_front, encode_frame
from dormouse_worker.model.gpu_health import GpuFault, GpuLost, HealthCheck, Nvml
from dormouse_worker.model.nvml import open_nvml
from dormouse_worker.settings import EngineSettings

logger = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
RECEIVE_BYTES = 1 << 16


class SocketTransport:
    """Implements `engine.loop.Transport` over a connected stream socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._splitter = FrameSplitter()

    def receive(self, timeout_s: float) -> list[FrontMessage] | None:
        """See `Transport`. A frame that can not be decoded ends the connection: the stream is broken."""
        messages: list[FrontMessage] = []
        while self._is_readable(timeout_s):
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except OSError:
                return None
            if not data:
                return None
            for payload in self._splitter.feed(data):
                messages.extend(decode_front(payload))
            timeout_s = 0.0
        return messages

    def send(self, message: EngineMessage) -> None:
        """See `Transport`."""
        try:
            self._socket.sendall(encode_frame([message]))
        except OSError as error:
            logger.warning("the front is gone: %s", error)

    def _is_readable(self, timeout_s: float) -> bool:
        readable, _, _ = select.select([self._socket], [], [], timeout_s)
        return bool(readable)


def open_gpu(settings: EngineSettings) -> Nvml | None:
    """Return the device to watch, None on the CPU and without NVML. Raises GpuLost."""
    return open_nvml(os.environ.get("CUDA_VISIBLE_DEVICES")) if settings.device == "cuda" else None


def main(argv: list[str] | None = None, *, open_gpu: Callable[[EngineSettings], Nvml | None] = open_gpu) -> int:
    """Run one engine; return 0 when the front closed the socket or asked for the end, else one of `exit_codes`."""
    parser = argparse.ArgumentParser(prog="dormouse_worker.engine_process", description=__doc__)
    parser.add_argument("--socket", required=True, help="path of the unix socket on which the front listens")
    arguments = parser.parse_args(argv)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the front drains and then ends us
    die_with_parent()
    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=EngineSettings)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(arguments.socket)
        try:
            gpu = open_gpu(settings)
        except GpuLost as error:
            end_unhealthy(GpuFault(f"CUDA device {os.environ.get('CUDA_VISIBLE_DEVICES') or 0}", str(error)))
        return _serve_watched(settings, SocketTransport(connection), gpu)


def _serve_watched(settings: EngineSettings, transport: SocketTransport, gpu: Nvml | None) -> int:
    check = HealthCheck(gpu) if gpu is not None else None
    watch = GpuWatch(check, end_unhealthy) if check else None
    if watch:
        watch.start()
    try:
        _serve(settings, transport)
    except EngineBroken as error:
        if check and (fault := explain_failure(check, time.sleep)):
            end_unhealthy(fault)
        logger.critical("%s", error)  # the last line is what the front repeats
        return EXIT_BROKEN
    finally:
        if watch:
            watch.stop()
    return 0


def end_unhealthy(fault: GpuFault) -> NoReturn:
    """End this process at once, from any thread; the last line is what the front repeats.

    Nothing is tidied up: on a device that is gone every call may hang.
    """
    os.write(sys.stderr.fileno(), f"{fault}\n".encode())
    os._exit(EXIT_GPU_UNHEALTHY)


def _serve(settings: EngineSettings, transport: SocketTransport) -> None:
    executor = SingleProcessExecutor(settings, os.environ, Host())
    controller = Controller(settings, executor, send=transport.send, clock=time.monotonic)
    EngineLoop(transport, controller).run()
    executor.shutdown()  # not after EngineBroken: a device that does not compute may hang in it


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the thread that started us ends.

    A front that died before this line is noticed by `connect`, or by the closed socket at the first `receive`.
    """
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
