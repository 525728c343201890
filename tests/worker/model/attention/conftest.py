"""One process with Triton's interpreter for all tests of the kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


class Interpreter:
    """Asks the child for the error of one case after the other."""

    def __init__(self, log):
        self._log = log
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.worker.model.attention.interpreted"],
            env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "error"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def error_of(self, name):
        """Return what is wrong with our kernels' answer to a case; None = nothing."""
        self._child.stdin.write(name + "\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline()
        assert answer, f"the interpreter's process ended: {self._end()}"
        return json.loads(answer)

    def close(self):
        self._child.stdin.close()
        self._child.wait(timeout=90)
        self._child.stdout.close()

    def _end(self):
        self._child.wait(timeout=90)
        self._log.seek(0)
        return self._log.read()[-2000:]


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory):
    with (tmp_path_factory.mktemp("interpreter") / "stderr").open("w+") as log:
        child = Interpreter(log)
        yield child
        child.close()
