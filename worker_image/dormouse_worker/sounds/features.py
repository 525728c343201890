"""Whisper's log-mel features, as transformers' `WhisperFeatureExtractor` makes them. Pure numpy.

frames       400 samples each, 160 apart, centred: the sound is mirrored at both ends
features     log10 of 80 or 128 mel bands, nothing more than 8 below the loudest of the whole sound, scaled
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dormouse_worker.sounds.decoding import Samples
from dormouse_worker.sounds.resampling import RATE_HZ

FRAME_SAMPLES, HOP_SAMPLES = 400, 160
FRAMES_A_SECOND = RATE_HZ // HOP_SAMPLES
_HALF = FRAME_SAMPLES // 2
_BATCH_FRAMES = 3000
_FLOOR = 1e-10
_BREAK_HZ, _BREAK_MEL, _HZ_PER_MEL = 1000.0, 15.0, 200.0 / 3.0  # Slaney's scale: linear, then logarithmic
_LOG_STEP = np.log(6.4) / 27.0

Floats = npt.NDArray[np.float64]


def log_mels(samples: Samples, num_mels: int) -> Iterator[npt.NDArray[np.float32]]:
    """Yield [n, num_mels] of consecutive frames, not scaled yet. At least 400 samples are needed."""
    filters, window = mel_filters(num_mels), np.hanning(FRAME_SAMPLES + 1)[:-1]
    num_frames = len(samples) // HOP_SAMPLES
    for first in range(0, num_frames, _BATCH_FRAMES):
        count = min(_BATCH_FRAMES, num_frames - first)
        frames = np.lib.stride_tricks.sliding_window_view(_around(samples, first, count), FRAME_SAMPLES)[::HOP_SAMPLES]
        power = np.abs(np.fft.rfft(frames[:count] * window)) ** 2
        yield np.log10(np.maximum(power @ filters, _FLOOR)).astype(np.float32)


def scale(logs: npt.NDArray[np.float32], loudest: np.float32) -> None:
    """Scale logs in place, by the largest of all of the sound."""
    np.maximum(logs, loudest - np.float32(8), out=logs)
    logs += np.float32(4)
    logs /= np.float32(4)


def mel_filters(num_mels: int) -> Floats:
    """Return [201, num_mels]: triangles of equal area, evenly apart on Slaney's mel scale up to 8 kHz."""
    edges = _to_hz(np.linspace(0.0, _to_mel(RATE_HZ / 2), num_mels + 2))
    slopes = edges[None, :] - np.linspace(0, RATE_HZ // 2, FRAME_SAMPLES // 2 + 1)[:, None]
    widths = np.diff(edges)
    rising, falling = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    triangles: Floats = np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (edges[2:] - edges[:-2]))
    return triangles


def _around(samples: Samples, first: int, count: int) -> Samples:
    """Return the samples of these frames, mirrored where they lie outside of the sound."""
    begin, end = first * HOP_SAMPLES - _HALF, (first + count - 1) * HOP_SAMPLES + _HALF
    inner = samples[max(0, begin) : min(len(samples), end)]
    left, right = samples[1 : 1 - min(0, begin)][::-1], samples[:0]
    if end > len(samples):
        right = samples[len(samples) - 1 - (end - len(samples)) : -1][::-1]
    return np.concatenate([left, inner, right])


def _to_mel(hz: float) -> float:
    return hz / _HZ_PER_MEL if hz < _BREAK_HZ else _BREAK_MEL + float(np.log(hz / _BREAK_HZ)) / _LOG_STEP


def _to_hz(mels: Floats) -> Floats:
    logarithmic = _BREAK_HZ * np.exp(_LOG_STEP * (mels - _BREAK_MEL))
    return np.where(mels >= _BREAK_MEL, logarithmic, mels * _HZ_PER_MEL)
