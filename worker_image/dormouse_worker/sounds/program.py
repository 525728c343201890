"""The program that decodes sound and makes features of it: a process of its own, with bounded memory and time.

Files come from callers, and decoders have faults: what is here may die. The front writes orders to standard input and
reads answers from standard output; samples and features lie in files of a folder that the front owns.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dormouse_worker.front.text.orders import REFUSED, TEXT, answer_orders, limit_memory, read
from dormouse_worker.sounds.clips import Clips
from dormouse_worker.sounds.decoding import BadSound, SoundLimits, open_sound, seconds_of_samples
from dormouse_worker.sounds.features import HOP_SAMPLES, log_mels, scale
from dormouse_worker.sounds.resampling import RATE_HZ, Resampler

_FLOAT_BYTES = 4
_BATCH_FRAMES = 3000
_NO_MEMORY = "it needs more memory than a sound may take"


class Processor(Protocol):
    """Makes a file for the engine of a sound."""

    def run(self, source: Path, target: Path) -> str:
        """Write the target; return what is told of it as JSON. Raises BadSound."""


@dataclass(frozen=True, slots=True)
class Processing:
    """How one model hears what it writes down."""

    num_mels: int
    window_frames: int  # what the encoder takes at once
    limits: SoundLimits

    def run(self, source: Path, target: Path) -> str:
        """Decode one file, write its features [frames, num_mels]; return what is told of it as JSON. Raises BadSound.

        A sound shorter than a window is filled up with silence, as transformers does.
        """
        samples_file = target.with_suffix(".samples")
        try:
            num_samples = self._decode(source, samples_file)
            samples = np.memmap(samples_file, np.float32, "r")
            num_frames = self._write_features(samples, target)
        except OSError as error:
            target.unlink(missing_ok=True)
            raise BadSound(f"its features do not fit the room for them ({error.strerror})") from error
        finally:
            samples_file.unlink(missing_ok=True)
        told = {"num_frames": num_frames, "num_content_frames": max(1, num_samples // HOP_SAMPLES)}
        return json.dumps(told | {"seconds": num_samples / RATE_HZ})

    def _decode(self, source: Path, target: Path) -> int:
        """Write samples at 16 kHz; return how many there are, without the silence behind them."""
        with open_sound(source, self.limits) as opened, target.open("wb") as file:
            num_samples = 0
            for piece in Resampler(opened.samplerate).run(seconds_of_samples(opened, self.limits)):
                piece.tofile(file)
                num_samples += len(piece)
            if not num_samples:
                raise BadSound("it has no samples; allowed: at least 1")
            silence = self.window_frames * HOP_SAMPLES - num_samples
            np.zeros(max(0, silence), np.float32).tofile(file)
        return num_samples

    def _write_features(self, samples: Any, target: Path) -> int:
        num_frames, loudest = 0, np.float32(-np.inf)
        with target.open("wb") as file:
            for logs in log_mels(samples, self.num_mels):
                logs.tofile(file)
                num_frames += len(logs)
                loudest = max(loudest, logs.max())
        with target.open("r+b") as file:
            for first in range(0, num_frames, _BATCH_FRAMES):
                place = first * self.num_mels * _FLOAT_BYTES
                file.seek(place)
                logs = np.fromfile(file, np.float32, min(_BATCH_FRAMES, num_frames - first) * self.num_mels)
                scale(logs, loudest)
                file.seek(place)
                logs.tofile(file)
        return num_frames


def answer(processing: Processor, order: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to an order."""
    (source,) = order["sources"]
    try:
        return {TEXT: processing.run(Path(source), Path(order["target"]))}
    except BadSound as error:
        return {REFUSED: str(error)}
    except MemoryError:
        return {REFUSED: _NO_MEMORY}


def _processor(setup: Mapping[str, Any]) -> Processor:
    """Return what processes sounds of prompts, whose rows need a least number of frames, or those of transcriptions."""
    num_mels, window_frames = setup["num_mels"], setup["window_frames"]
    if (least_frames := setup.get("least_frames")) is None:
        return Processing(num_mels, window_frames, SoundLimits(setup["max_seconds"]))
    limits = SoundLimits(setup["max_seconds"], "what this model hears at once")
    return Clips(num_mels, window_frames, least_frames, limits)


def main() -> None:
    """Say that it runs, then process until the front is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the front ends this process when it ends itself
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a file that is too large is an error, no death
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    setup = read(source)
    if setup is None:
        return
    processing = _processor(setup)
    limit_memory(setup["memory_bytes"], setup["max_file_bytes"])
    answer_orders(source, sink, partial(answer, processing), seconds=setup["seconds"])


if __name__ == "__main__":
    main()
