"""Processes of tests that begin with torch and transformers imported: each is forked from one that did so once.

For tests of what processes do to one another, not of how one starts: a process of its own imports for seconds of a
core, and a group has four. The first is forked before it has computed anything, so no thread of it is missing.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.worker.preloaded"])


class Forked:
    """One process that calls a function of a module, and what that returned or raised."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, environ: Mapping[str, str]) -> None:
        self._answers, answers = _CONTEXT.Pipe(duplex=False)
        self.process = _CONTEXT.Process(target=_answer, args=(answers, environ, function, arguments), daemon=True)
        self.process.start()
        answers.close()

    def answer(self, timeout_s: float) -> Any:
        """Return what the function returned, when the process has ended; fail if it ended without an answer."""
        assert self._answers.poll(timeout_s), f"no answer within {timeout_s} s"
        try:
            told = self._answers.recv()
        except EOFError:
            told = None
        self.process.join(timeout_s)
        assert self.process.exitcode == 0, f"it ended with {self.process.exitcode}; why is on standard error"
        return told

    def close(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.join()
        self.process.close()
        self._answers.close()


def _answer(answers: Any, environ: Mapping[str, str], function: Callable[..., Any], arguments: Any) -> None:
    os.environ.update(environ)
    answers.send(function(*arguments))
