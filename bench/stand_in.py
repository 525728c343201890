"""A worker whose engine computes nothing: `python -m bench.stand_in FLAGS` is the front as it is, over a paced engine.

The engine gives every request one token per step, one step every STEP_PERIOD_S (or `--step-seconds`; 0 = at once), all
in one frame as the real one does; each request gets its own prompt over and over. With `--socket` this program is that
engine.
"""

from __future__ import annotations

import argparse
import select
import socket
import sys
import time
from collections.abc import Sequence

import msgspec

from dormouse_worker.__main__ import main as run_front
from dormouse_worker.common.frames import FrameSplitter, decode_front, encode_frame
from dormouse_worker.common.ipc import EngineMessage, EngineStatus
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.testing.fake_engine import FakeEngine, Script

STEP_PERIOD_S = 0.02
RECEIVE_BYTES = 1 << 16


class LongEngine(FakeEngine):
    """A fake engine with the settings' model length, which a benchmark's streams need."""

    def __init__(self, max_model_len: int) -> None:
        super().__init__(Script())
        self._max_model_len = max_model_len

    def load(self) -> list[EngineMessage]:
        """See `FakeEngine`."""
        loaded = super().load()
        report = self.status.report
        assert report is not None, "a script without failure reports"
        changed = msgspec.structs.replace(report, max_model_len=self._max_model_len)
        self.status = msgspec.structs.replace(self.status, report=changed)
        return [self.status if isinstance(message, EngineStatus) else message for message in loaded]


def serve(connection: socket.socket, engine: FakeEngine, step_s: float = STEP_PERIOD_S) -> None:
    """Step at the given pace until the front hangs up."""
    splitter = FrameSplitter()
    connection.sendall(encode_frame([*engine.begin(), *engine.load()]))
    next_step_s = time.monotonic()
    while True:
        pause_s = max(0.0, next_step_s - time.monotonic()) if engine.has_work else None
        if select.select([connection], [], [], pause_s)[0]:
            data = connection.recv(RECEIVE_BYTES)
            if not data:
                return
            for payload in splitter.feed(data):
                answers = [answer for message in decode_front(payload) for answer in engine.handle(message)]
                connection.sendall(encode_frame(answers))
        if engine.has_work and time.monotonic() >= next_step_s:
            connection.sendall(encode_frame(engine.step()))
            next_step_s = max(next_step_s + step_s, time.monotonic())


def run_engine(socket_path: str, step_s: float) -> None:
    """Be the engine: settings on standard input, as `front.engine_spawn` gives them."""
    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=EngineSettings)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(socket_path)
        serve(connection, LongEngine(settings.max_model_len), step_s)


def main(argv: Sequence[str]) -> None:
    """Be the front, or with `--socket` its engine; what is not known here is a flag of the front."""
    parser = argparse.ArgumentParser(prog="python -m bench.stand_in", allow_abbrev=False, add_help=False)
    parser.add_argument("--step-seconds", type=float, default=STEP_PERIOD_S)
    parser.add_argument("--socket")
    own, flags = parser.parse_known_args(argv)
    if own.socket:
        run_engine(own.socket, own.step_seconds)
        return
    pace = ("--step-seconds", str(own.step_seconds))
    run_front(flags, engine_argv=(sys.executable, "-m", "bench.stand_in", *pace))


if __name__ == "__main__":
    main(sys.argv[1:])
