"""From a file to samples of one channel, within limits that are checked before anything is decoded. Knows no model.

Imported by the sound process alone: a decoder reads what anybody sends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile  # type: ignore[import-untyped]

from dormouse_worker.sounds.webm import MAGIC, WebmRefused, as_ogg

Samples = npt.NDArray[np.float32]

FORMATS = ("WAV", "WAVEX", "FLAC", "OGG", "MP3")  # by libsndfile's names
ALLOWED = "wav, flac, ogg, mp3 and webm with Opus"
MIN_RATE_HZ, MAX_RATE_HZ = 4_000, 192_000
MAX_CHANNELS = 8


class BadSound(Exception):
    """A file cannot be used; the message names value and limit, and repeats nothing of the file."""


@dataclass(frozen=True, slots=True)
class SoundLimits:
    """What is decoded at all."""

    max_seconds: float
    whose: str = "--max-audio-seconds"  # limit it is


def open_sound(path: Path, limits: SoundLimits) -> soundfile.SoundFile:
    """Return an open file whose header keeps the limits. Raises BadSound."""
    try:
        opened = soundfile.SoundFile(_readable(path))
    except WebmRefused as error:
        raise BadSound(str(error)) from error
    except Exception as error:  # a decoder fails in any way; what it says may show parts of the file
        raise BadSound(f"it cannot be decoded ({type(error).__name__}); allowed are {ALLOWED}") from error
    try:
        _check_header(opened, limits)
    except BadSound:
        opened.close()
        raise
    return opened


def seconds_of_samples(opened: soundfile.SoundFile, limits: SoundLimits) -> Iterator[Samples]:
    """Yield the mean of all channels, a second at a time; only the last piece is shorter. Raises BadSound.

    What a header says of the length is no promise: what really comes is counted.
    """
    num_left = round(limits.max_seconds * opened.samplerate)
    while True:
        try:
            block = opened.read(opened.samplerate, dtype="float32", always_2d=True)
        except Exception as error:
            raise BadSound(f"it cannot be decoded to its end ({type(error).__name__})") from error
        if not len(block):
            return
        num_left -= len(block)
        if num_left < 0:
            raise _too_long("more than the limit", limits)
        samples: Samples = block.mean(axis=1, dtype=np.float32)
        if not np.isfinite(samples).all():
            raise BadSound("it has samples that are not finite; allowed are numbers")
        yield samples


def _readable(path: Path) -> Path | BytesIO:
    """Return what libsndfile reads: the file, or what is in it as a file of another kind. Raises WebmRefused."""
    with path.open("rb") as file:
        is_webm = file.read(len(MAGIC)) == MAGIC
    return BytesIO(as_ogg(path.read_bytes())) if is_webm else path


def _check_header(opened: soundfile.SoundFile, limits: SoundLimits) -> None:
    """Raise BadSound for what the header says."""
    if opened.format not in FORMATS:
        raise BadSound(f"it is of the kind {opened.format}; allowed are {ALLOWED}")
    if not MIN_RATE_HZ <= opened.samplerate <= MAX_RATE_HZ:
        raise BadSound(f"it has {opened.samplerate} samples a second; allowed: {MIN_RATE_HZ} to {MAX_RATE_HZ}")
    if not 1 <= opened.channels <= MAX_CHANNELS:
        raise BadSound(f"it has {opened.channels} channels; allowed: 1 to {MAX_CHANNELS}")
    if (seconds := opened.frames / opened.samplerate) > limits.max_seconds:
        raise _too_long(f"{seconds:.1f} seconds", limits)


def _too_long(how_long: str, limits: SoundLimits) -> BadSound:
    return BadSound(f"it lasts {how_long}; allowed: {limits.max_seconds:g} seconds ({limits.whose})")
