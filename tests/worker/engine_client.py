"""A front of a few lines, which starts the engine process and talks to it as the real one does."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dormouse_worker.common.commands import Command, InitializeCache, WakeUp
from dormouse_worker.common.frames import FrameSplitter, decode_engine, encode_frame
from dormouse_worker.common.ipc import (
    CommandRequest,
    CommandResult,
    EngineMessage,
    EngineStatus,
    Sampling,
    State,
    StepOutputs,
)
from dormouse_worker.common.settings import EngineSettings

WAIT_S = 90.0


class EngineClient:
    """Starts the engine process, sends messages, collects what comes back."""

    def __init__(
        self,
        settings: EngineSettings,
        socket_path: Path,
        launcher: Sequence[str] = (),
        program: Sequence[str] = ("-m", "dormouse_worker.engine_process"),
    ) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(socket_path))
        self._listener.listen(1)
        command = [sys.executable, *program, "--socket", str(socket_path)]
        self._log = socket_path.with_suffix(".log")
        with self._log.open("wb") as stderr:
            self.process = subprocess.Popen([*launcher, *command], stdin=subprocess.PIPE, stderr=stderr)
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(settings))
        self.process.stdin.close()
        self._listener.settimeout(WAIT_S)
        self._connection, _ = self._listener.accept()
        self._splitter = FrameSplitter()
        self._inbox: list[EngineMessage] = []
        self._command_id = 0
        self.finish_reasons: dict[str, str] = {}

    def send(self, *messages):
        self._connection.sendall(encode_frame(list(messages)))

    def receive(self) -> EngineMessage:
        while not self._inbox:
            readable, _, _ = select.select([self._connection], [], [], WAIT_S)
            assert readable, f"the engine said nothing for {WAIT_S} s"
            data = self._connection.recv(1 << 16)
            assert data, "the engine closed the connection"
            for payload in self._splitter.feed(data):
                self._inbox.extend(decode_engine(payload))
        return self._inbox.pop(0)

    def wait_for(self, *states: State) -> EngineStatus:
        while True:
            message = self.receive()
            if isinstance(message, EngineStatus) and message.state in states:
                return message

    def command(self, command: Command) -> CommandResult:
        self._command_id += 1
        self.send(CommandRequest(self._command_id, command))
        while True:
            message = self.receive()
            if isinstance(message, CommandResult):
                assert message.command_id == self._command_id
                return message

    def collect(self, request_ids: set[str]) -> dict[str, list[int]]:
        """Return the tokens of these requests when all have ended."""
        tokens: dict[str, list[int]] = {}
        open_ids = set(request_ids)
        while open_ids:
            message = self.receive()
            if isinstance(message, StepOutputs):
                assert not message.failed
                for output in message.outputs:
                    tokens.setdefault(output.request_id, []).extend(output.token_ids)
                    if output.finish_reason:
                        self.finish_reasons[output.request_id] = output.finish_reason
                        open_ids.discard(output.request_id)
        return tokens

    def close(self) -> int:
        self._connection.close()
        self._listener.close()
        return self.process.wait(WAIT_S)

    @property
    def last_words(self) -> str:
        """Return the last line on standard error."""
        return self._log.read_text().splitlines()[-1]


def greedy(max_tokens: int, **overrides) -> Sampling:
    return Sampling(temperature=0, top_p=1, top_k=0, min_p=0, seed=0, max_tokens=max_tokens, **overrides)


def make_ready(engine) -> None:
    assert engine.command(WakeUp()).error_reason in {"", "WrongState"}
    assert engine.command(InitializeCache(64, 0)) == CommandResult(engine._command_id)
