"""What scores are multiplied and divided by, as float32 numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_FLOAT32 = np.finfo(np.float32)


def factors_of(temperatures: Sequence[float]) -> npt.NDArray[np.float32]:
    """Return what differences of scores are multiplied with: log2(e) / temperature. All above 0."""
    return float32_factors([math.log2(math.e) / temperature for temperature in temperatures])


def float32_factors(values: Sequence[float]) -> npt.NDArray[np.float32]:
    """Return positive factors as float32 numbers that are neither 0 nor infinite: x * f and x / f are never NaN."""
    factors: npt.NDArray[np.float32] = np.clip(np.array(values), _FLOAT32.tiny, _FLOAT32.max).astype(np.float32)
    return factors
