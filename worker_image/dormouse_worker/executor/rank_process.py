"""One rank's process: `python -m dormouse_worker.executor.rank_process --rank N (--socket PATH | --address HOST:PORT)`.

Settings come as JSON on standard input. It connects to its leader, says who it is and carries out orders, one after the
other, until the leader hangs up. It dies with whoever started it.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import msgspec

from dormouse_worker.common.errors import InvalidArgument
from dormouse_worker.common.exit_codes import EXIT_LEADER_GONE, EXIT_REFUSED
from dormouse_worker.common.host import Host
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.processes import die_with_parent, end_unhealthy
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.stand_in import has_gpu
from dormouse_worker.executor.environment import (
    interface_of,
    library_variables,
    meeting_variables,
    rank_share,
    rank_variables,
    visible_device,
)
from dormouse_worker.executor.gpu_watch import GpuWatch
from dormouse_worker.executor.ranks.handshake import make_hello
from dormouse_worker.executor.ranks.leader_connection import (
    BEAT_PERIOD_S,
    LeaderGone,
    LeaderLine,
    connect_tcp,
    connect_unix,
)
from dormouse_worker.executor.ranks.messages import Answer, Call, Hello, Refusal, Step, Welcome, encode_value
from dormouse_worker.executor.ranks.tls import Stream, tls_of
from dormouse_worker.executor.worker.wrapper import WorkerWrapper, worker_class_of
from dormouse_worker.files.gguf.folder import as_directory
from dormouse_worker.model.memory.gpu_health import HealthCheck
from dormouse_worker.model.memory.nvml import open_nvml

logger = logging.getLogger(__name__)

# Lines on standard output, to the front of a pod that follows: that the leader has welcomed us, and signs of life
JOINED, BEAT = "joined", "beat"
BEFORE_BUILT = {"get_memory_report": None, "check_health": None, "end_profile": None, "shutdown": None}


class Rank:
    """Owns the worker, and what the pod's ranks share out. Builds it with `init_device`, not before."""

    def __init__(self, settings: EngineSettings, layout: Layout, environ: MutableMapping[str, str], host: Host) -> None:
        self._settings = rank_share(settings, host)
        self._layout = layout
        self._environ = environ
        self._host = host
        self._wrapper: WorkerWrapper | None = None
        self.was_shut_down = False

    def __repr__(self) -> str:
        return f"Rank({self._layout}, {self._wrapper!r})"

    def answer(self, order: Call | Step) -> Answer:
        """Carry out one order; raises nothing."""
        try:
            return Answer(order.call_id, encode_value(self._carry_out(order)))
        except Exception as error:  # whatever a worker raises is the leader's to judge
            logger.warning("rank %d: %s", self._layout.rank, error, exc_info=True)
            return Answer(order.call_id, error=type(error).__name__, message=str(error))

    def _carry_out(self, order: Call | Step) -> Any:
        if isinstance(order, Step):
            return self._step(order)
        if order.method == "init_device":
            self._wrapper = self._build()
        if order.method == "shutdown":
            self.was_shut_down = True
        if self._wrapper is None:
            return self._unbuilt(order.method)
        value = self._wrapper.execute_method(order.method, *order.args, **order.kwargs)
        return self._require_sayable(order.method, value)

    def _step(self, order: Step) -> Any:
        assert self._wrapper is not None, "init_device comes first"
        if order.sampled:
            self._wrapper.execute_method("append_sampled", order.sampled)
        return self._wrapper.execute_method("execute_model", order.batch)

    @staticmethod
    def _unbuilt(method: str) -> None:
        if method not in BEFORE_BUILT:
            raise InvalidArgument(f"method is {method!r}, but init_device has not been called")

    @staticmethod
    def _require_sayable(method: str, value: Any) -> Any:
        try:
            encode_value(value)
        except TypeError as error:
            raise InvalidArgument(
                f"method is {method!r}, whose answer cannot be sent to the leader: {error}"
            ) from error
        return value

    def _build(self) -> WorkerWrapper:
        settings = as_directory(self._settings)
        wrapper = WorkerWrapper(settings, self._layout.rank, worker_class_of(settings, self._environ))
        wrapper.update_environment(self._environ, self._variables())
        wrapper.init_worker()
        return wrapper

    def _variables(self) -> dict[str, str]:
        variables = library_variables(self._host.num_threads(self._settings.threads)) | rank_variables(self._layout)
        if not has_gpu(self._settings, self._environ):
            return variables
        return variables | {
            "CUDA_VISIBLE_DEVICES": visible_device(self._layout, self._environ.get("CUDA_VISIBLE_DEVICES"))
        }


def serve(line: LeaderLine, rank: Rank, hello: Hello, take: Callable[[Mapping[str, str]], None]) -> int:
    """Greet, then carry out orders until the leader hangs up; return the exit code.

    `take` is given the variables of the group once the leader has welcomed us.
    """
    line.say(hello)
    try:
        while True:
            message = line.receive()
            if isinstance(message, Refusal):
                logger.critical("refused by the leader: %s", message.message)  # the last line is what others repeat
                return EXIT_REFUSED
            if isinstance(message, Welcome):
                take(message.environment)
                line.start_beating()
            else:
                line.say(rank.answer(message))
    except LeaderGone as error:
        return end_of(rank, hello, error)


def end_of(rank: Rank, hello: Hello, error: LeaderGone) -> int:
    """Return the exit code of a rank whose leader is gone: 0 if it had said so before."""
    if rank.was_shut_down:
        return 0
    logger.critical("rank %d: %s", hello.rank, error)
    return EXIT_LEADER_GONE


def main(argv: list[str] | None = None) -> int:
    """Run one rank; return one of `exit_codes`."""
    flags = _parser().parse_args(argv)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format=f"%(asctime)s %(levelname)s rank {flags.rank}: %(message)s"
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the front drains and then ends us
    die_with_parent()
    if flags.address:
        threading.Thread(target=_show_life, name="front-beat", daemon=True).start()
    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=EngineSettings)
    layout = Layout(settings.tensor_parallel_size, settings.pipeline_parallel_size, flags.rank)
    rank, hello = Rank(settings, layout, os.environ, Host()), make_hello(flags.rank, settings, os.environ)
    try:
        connection = _connect(flags)
    except LeaderGone as error:
        return end_of(rank, hello, error)
    with connection, watched_gpu(settings, layout):
        return serve(LeaderLine(connection), rank, hello, lambda variables: _join(connection, variables))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dormouse_worker.executor.rank_process", description=__doc__)
    parser.add_argument("--rank", type=int, required=True, help="which rank of the group this is")
    leader = parser.add_mutually_exclusive_group(required=True)
    leader.add_argument("--socket", help="unix socket of the leader in this pod")
    leader.add_argument("--address", help="HOST:PORT of the leader in another pod")
    parser.add_argument("--connect-timeout", type=float, default=300.0, help="seconds to look for the leader")
    return parser


def _connect(flags: argparse.Namespace) -> Stream:
    if flags.socket:
        return connect_unix(Path(flags.socket))
    host, _, port = flags.address.rpartition(":")
    tls = tls_of(os.environ)
    return connect_tcp(host, int(port), flags.connect_timeout, tls, clock=time.monotonic, sleep=time.sleep)


def _show_life() -> None:
    """Let the front know a stopped process from one that waits; a front that is gone ends us."""
    while True:
        try:
            _tell_front(BEAT)
        except OSError:
            os._exit(EXIT_LEADER_GONE)
        time.sleep(BEAT_PERIOD_S)


def _tell_front(line: str) -> None:
    """Write a line at once, whole: two threads do. Raises OSError when the front is gone."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def _join(connection: Stream, variables: Mapping[str, str]) -> None:
    """Take the group's variables; a rank of another pod listens on its own interface and tells its front."""
    os.environ.update(variables)
    if connection.family == socket.AF_UNIX:
        return
    own = interface_of(connection.getsockname()[0])
    os.environ.update(meeting_variables(variables["MASTER_ADDR"], int(variables["MASTER_PORT"]), own))
    _tell_front(JOINED)


@contextlib.contextmanager
def watched_gpu(settings: EngineSettings, layout: Layout) -> Iterator[None]:
    """End this process when its GPU falls ill; nothing is watched on the CPU."""
    device = visible_device(layout, os.environ.get("CUDA_VISIBLE_DEVICES")) if has_gpu(settings, os.environ) else None
    gpu = open_nvml(device) if device is not None else None
    if gpu is None:
        yield
        return
    watch = GpuWatch(HealthCheck(gpu), end_unhealthy)
    watch.start()
    try:
        yield
    finally:
        watch.stop()


if __name__ == "__main__":
    exit_code = main()
    logging.shutdown()
    os._exit(exit_code)  # the interpreter's own end takes seconds with torch, and its leader waits for it
