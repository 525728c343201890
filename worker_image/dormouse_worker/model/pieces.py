"""A computation in pieces: it stops where it says it can, and goes on later with the result of the whole."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
Pause = Callable[[], None]  # called where the computation can stop; returns when it is to go on


class Left(BaseException):
    """Nobody wants the result any more; no `except Exception` on the way shall stop it."""


class Pieces(Generic[T]):
    """Computes in a thread of its own, but only while somebody waits in `advance`: never beside its owner.

    But for what lasts longer than its owner's patience, such as a file that does not come. Safe to forget only once it
    is done or left.
    """

    def __init__(
        self, compute: Callable[[Pause], T], clock: Callable[[], float] = time.perf_counter, *, name: str
    ) -> None:
        """`name` is the thread's."""
        self._compute = compute
        self._clock = clock
        self._deadline_s = 0.0
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self.is_out = False  # it did not stop while its owner had patience
        self._is_left = False
        self._result: T | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.is_done = False

    def __repr__(self) -> str:
        return f"Pieces({'done' if self.is_done else 'left' if self._is_left else 'under way'})"

    def advance(self, seconds: float, *, patience_s: float = math.inf) -> bool:
        """Compute for so long, and until it can stop, or is done; return whether it is.

        `patience_s` is how much longer it is waited for then.
        """
        was_out = self.is_out
        self._deadline_s = self._clock() + seconds
        if not self.is_done:
            self._wake(seconds + patience_s)
        if was_out and not (self.is_out or self.is_done) and self._clock() < self._deadline_s:
            self._wake(seconds + patience_s)  # it had stopped before, when its time of then was over
        return self.is_done

    def finish(self) -> T:
        """Compute the rest; return the result. Raises what the computation raised."""
        self.advance(math.inf)
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._result is not None, "it is done, and without an error"
        return self._result

    def leave(self) -> None:
        """Drop what there is of it, at once or when it can stop. Safe to call at any time, and twice."""
        self._is_left = True
        if self._thread.ident is not None and not self.is_done:
            self._go.release()
            if not self.is_out:
                self._thread.join()
        self.is_done = True

    @property
    def has_thread(self) -> bool:
        """Return whether its thread may still write somewhere, also when it was left."""
        return self._thread.is_alive()

    def _wake(self, timeout_s: float) -> None:
        """Let the thread go on, and wait until it stops or ends."""
        if self._thread.ident is None:
            self._thread.start()
        elif not self.is_out:
            self._go.release()
        self.is_out = not self._stopped.acquire(timeout=None if timeout_s == math.inf else timeout_s)
        if self.is_done and not self.is_out:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._result = self._compute(self._pause)
        except Left:
            pass
        except Exception as error:  # noqa: BLE001  told where the result is asked for
            self._error = error
        finally:
            self.is_done = True
            self._stopped.release()

    def _pause(self) -> None:
        """Hand back to who waits, if the time is over, until he comes again. Raises Left if he does not want it."""
        if self._clock() >= self._deadline_s and not self._is_left:
            self._stopped.release()
            self._go.acquire()
        if self._is_left:
            raise Left
