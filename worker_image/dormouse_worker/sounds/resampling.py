"""From any sample rate to 16 kHz: a polyphase filter, of whose windowed sinc each output sees one phase.

With g, the greatest common divisor of both rates, output n lies at input n · down / up (down rate / g, up 16000 / g);
`up` outputs have `up` phases, and the next `up` outputs the same ones, `down` inputs later. A second is a whole number
of such rounds, whatever the rate, so that sound may come second by second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from dormouse_worker.sounds.decoding import Samples

RATE_HZ = 16_000
_ZERO_CROSSINGS = 16  # of the sinc, on each side
_ROLL_OFF = 0.95  # of the lower Nyquist frequency: what passes
_BETA = 8.6  # of the Kaiser window: 86 dB


class Resampler:
    """Owns the filter of one rate."""

    def __init__(self, rate_hz: int) -> None:
        """Design it."""
        divisor = math.gcd(rate_hz, RATE_HZ)
        self._rate_hz = rate_hz
        self._up, self._down = RATE_HZ // divisor, rate_hz // divisor
        self._cutoff = _ROLL_OFF * min(1.0, RATE_HZ / rate_hz)  # of the input's Nyquist frequency
        self._half = math.ceil(_ZERO_CROSSINGS / self._cutoff)  # inputs that count, on each side
        positions = np.arange(self._up) * self._down
        self._first, self._taps = positions // self._up, self._design(positions % self._up / self._up)

    def run(self, seconds: Iterable[Samples]) -> Iterator[Samples]:
        """Yield the pieces at 16 kHz; each but the last is to have a second."""
        if self._rate_hz == RATE_HZ:
            yield from seconds
            return
        before = np.zeros(self._half, np.float32)
        piece: Samples | None = None
        for following in seconds:
            if piece is not None:
                yield self._convert(np.concatenate([before, piece, following[: self._half + 1]]), len(piece))
                before = np.concatenate([before, piece])[-self._half :]
            piece = following
        if piece is not None:
            yield self._convert(np.concatenate([before, piece]), len(piece))

    def _convert(self, around: Samples, num_inputs: int) -> Samples:
        """Return the outputs that lie within `num_inputs` inputs, the first of which stands at `half`."""
        num_outputs = -(-num_inputs * self._up // self._down)
        num_rounds = -(-num_outputs // self._up)
        missing = (num_rounds + 1) * self._down + 2 * self._half + 2 - len(around)
        padded = np.pad(around, (0, max(0, missing)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * self._half + 1)
        places = (np.arange(num_rounds) * self._down)[:, None] + self._first
        rounds: Samples = np.einsum("rpt,pt->rp", windows[places], self._taps)
        return rounds.reshape(-1)[:num_outputs]

    def _design(self, offsets: npt.NDArray[np.float64]) -> Samples:
        """Return for each phase the weights of the inputs around a place that is so far behind the middle one."""
        distance = np.arange(-self._half, self._half + 1)[None, :] - offsets[:, None]
        window = np.i0(_BETA * np.sqrt(np.clip(1 - (distance / (self._half + 1)) ** 2, 0, 1))) / np.i0(_BETA)
        return (self._cutoff * np.sinc(self._cutoff * distance) * window).astype(np.float32)
