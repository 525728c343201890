"""vLLM's own server, started and ended: its OpenAI API over HTTP, the engine core in a process of its own.

Not by the `vllm` command, which this package does not have. Its log is left out, as its documentation advises for load.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType

MODULE = "vllm.entrypoints.openai.api_server"
NAME = "peer"  # of the model, for its clients
MAX_MODEL_LEN = 2048
QUIET = ("--disable-log-stats", "--disable-uvicorn-access-log", "--uvicorn-log-level", "error")
START_TIMEOUT_S = 600.0  # its first start compiles
POLL_S = 0.1


def arguments(model: str, dtype: str, port: int, max_model_len: int = MAX_MODEL_LEN) -> list[str]:
    """Return the command line behind the interpreter: the server's own defaults but for what both sides are told."""
    told = {"--model": model, "--served-model-name": NAME, "--dtype": dtype, "--max-model-len": str(max_model_len)}
    where = {"--host": "127.0.0.1", "--port": str(port)}
    words = [word for flag, value in (told | where).items() for word in (flag, value)]
    return ["-m", MODULE, *words, "--enable-prefix-caching", *QUIET]


class VllmServer:
    """One server. Use as a context manager; it answers once `wait_ready` has returned.

    `stop` and `go_on` are for all its processes: libraries let threads spin for a while after their work.
    """

    def __init__(self, command: Sequence[str], port: int, env: Mapping[str, str]) -> None:
        self.port = port
        # A group of its own, which is stopped and goes on as a whole; who is stopped in it does not outlive us.
        # What it prints goes to standard error: our standard output may be somebody's data.
        self._process = subprocess.Popen(command, env=env, stdout=2, process_group=0)

    def __repr__(self) -> str:
        return f"VllmServer(pid={self._process.pid}, port={self.port})"

    def __enter__(self) -> VllmServer:
        """Return the server."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, and whatever it leaves behind."""
        self.go_on()
        self._process.terminate()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def wait_ready(self) -> None:
        """Return when it answers. Raises RuntimeError if it ended instead, TimeoutError if it takes too long."""
        until_s = time.monotonic() + START_TIMEOUT_S
        while not self._is_healthy():
            if self._process.poll() is not None:
                raise RuntimeError(f"vLLM's server ended with {self._process.returncode}: see its words above")
            if time.monotonic() > until_s:
                raise TimeoutError(f"vLLM's server did not answer within {START_TIMEOUT_S:g} s")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Take the processor from all its processes."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Give it back. Safe when it was not taken."""
        self._signal(signal.SIGCONT)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Let it run within the block only."""
        self.go_on()
        try:
            yield
        finally:
            self.stop()

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                return True
        except OSError:
            return False

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:  # all of the group have ended
            return
