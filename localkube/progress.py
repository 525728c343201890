"""Lines for a person who waits, each with the seconds since the start."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


def _print(line: str) -> None:
    print(line, flush=True)


@dataclass(slots=True)
class Progress:
    """Prints what happens; `clock` gives seconds and `write` takes one line, so that tests see both."""

    clock: Callable[[], float] = time.monotonic
    write: Callable[[str], None] = _print
    started_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.started_s = self.clock()

    def say(self, text: str) -> None:
        """Print one line."""
        self.write(f"[localkube {self.clock() - self.started_s:6.1f} s] {text}")


def human_bytes(num_bytes: float) -> str:
    """Return a size for people: `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.1f} {unit}" if unit != "B" else f"{num_bytes:.0f} B"
        num_bytes /= 1024
    return f"{num_bytes:.1f} GiB"
