"""The frequencies of a plain rotary embedding (Su et al., 'RoFormer', 2021), the same numbers on every machine."""

from __future__ import annotations

import numpy as np

from dormouse_worker.model.scratch import Floats


def default_frequencies(theta: float, size: int) -> Floats:
    """Return 1 / theta ** (2 i / size) for the `size / 2` pairs of a head's numbers, in float32.

    The exponents are float32, as everywhere; the powers are rounded once. torch's own powers are off by a last bit for
    some, and which ones depends on the processor.
    """
    exponents = np.arange(0, size, 2).astype(np.float32) / np.float32(size)
    powers = np.power(np.float64(theta), exponents.astype(np.float64)).astype(np.float32)
    frequencies: Floats = np.float32(1) / powers
    return frequencies
