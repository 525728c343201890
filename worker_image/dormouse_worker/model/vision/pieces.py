"""A computation of torch in pieces: it stops between two operations and goes on later, with the bits of the whole."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class Left(BaseException):
    """Nobody wants the result any more; no `except Exception` on the way shall stop it."""


class Pieces:
    """Computes in a thread of its own, but only while somebody waits in `advance`: never beside its owner.

    Operations are what Python asks of torch, so any model's code can stop between them. Safe to forget only once it is
    done or left.
    """

    def __init__(self, compute: Callable[[], torch.Tensor], clock: Callable[[], float] = time.perf_counter) -> None:
        self._compute = compute
        self._clock = clock
        self._deadline_s = 0.0
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._is_left = False
        self._result: torch.Tensor | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="encoder", daemon=True)
        self.is_done = False

    def __repr__(self) -> str:
        return f"Pieces({'done' if self.is_done else 'left' if self._is_left else 'under way'})"

    def advance(self, seconds: float) -> bool:
        """Compute for so long, and to the end of an operation, or until it is done; return whether it is."""
        self._deadline_s = self._clock() + seconds
        if not self.is_done:
            self._wake()
        return self.is_done

    def finish(self) -> torch.Tensor:
        """Compute the rest; return the result. Raises what the computation raised."""
        self.advance(float("inf"))
        if self._error is not None:
            raise self._error
        assert self._result is not None, "it is done, and without an error"
        return self._result

    def leave(self) -> None:
        """Drop what there is of it. Safe to call at any time, and twice."""
        self._is_left = True
        if self._thread.ident is not None and not self.is_done:
            self._wake()
        self.is_done = True

    def _wake(self) -> None:
        """Let the thread go on, and wait until it stops or ends."""
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._go.release()
        self._stopped.acquire()
        if self.is_done:
            self._thread.join()

    def _run(self) -> None:
        try:
            with AfterEach(self._pause):
                self._result = self._compute()
        except Left:
            pass
        except Exception as error:  # noqa: BLE001  told where the result is asked for
            self._error = error
        finally:
            self.is_done = True
            self._stopped.release()

    def _pause(self) -> None:
        """Hand back to who waits, if the time is over, until he comes again. Raises Left if he does not want it."""
        if self._clock() >= self._deadline_s:
            self._stopped.release()
            self._go.acquire()
            if self._is_left:
                raise Left


class AfterEach(TorchFunctionMode):
    """Calls somebody behind each operation of torch, in the thread that entered it."""

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__()
        self._call = call

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        self._call()
        return result
