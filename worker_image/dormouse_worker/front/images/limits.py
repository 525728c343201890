"""What images may take of a front."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """What images may take."""

    max_pixels: int = 50_000_000  # of one, before it is decoded
    cache_bytes: int = 512 << 20  # of all files, also of images that nobody asks about just now
    waiting_bytes: int = 256 << 20  # of files that came and are not processed yet
    max_tensor_bytes: int = 256 << 20  # of one
    memory_bytes: int = 1 << 30  # of a process, beyond what it begins with
    seconds: float = 60.0  # of the clock, for one: a tenth of a second on an idle machine
    start_s: float = 60.0  # until a process answers at all: it is Python that starts, on a machine that may be busy
