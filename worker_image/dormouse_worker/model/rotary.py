"""The frequencies of a rotary embedding (Su et al., 'RoFormer', 2021), the same numbers on every machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dormouse_worker.model.rope_kinds import PLAIN
from dormouse_worker.model.scratch import Floats


def frequencies(rope: Mapping[str, Any], size: int) -> Floats:
    """Return what the `size / 2` pairs of a head's numbers turn by at each position, float32.

    `rope` has the parameters of its `rope_type`, named as in config.json.
    """
    plain = default_frequencies(float(rope["rope_theta"]), size)
    kind = rope.get("rope_type", PLAIN)
    if kind == "linear":
        slower: Floats = plain / np.float32(rope["factor"])
        return slower
    return _llama3(rope, plain) if kind == "llama3" else plain


def default_frequencies(theta: float, size: int) -> Floats:
    """Return 1 / theta ** (2 i / size) for the `size / 2` pairs of a head's numbers, in float32.

    The exponents are float32, as everywhere; the powers are rounded once. torch's own powers are off by a last bit for
    some, and which ones depends on the processor.
    """
    exponents = np.arange(0, size, 2).astype(np.float32) / np.float32(size)
    powers = np.power(np.float64(theta), exponents.astype(np.float64)).astype(np.float32)
    found: Floats = np.float32(1) / powers
    return found


def _llama3(rope: Mapping[str, Any], plain: Floats) -> Floats:
    """Slow long waves down by the factor, leave short ones, and go over from one to the other between (Llama 3.1).

    Each operation is rounded to float32, in the order of transformers.
    """
    factor, low, high = (np.float32(rope[name]) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    length = rope["original_max_position_embeddings"]
    longest, shortest = np.float32(length / rope["low_freq_factor"]), np.float32(length / rope["high_freq_factor"])
    waves = np.float32(2 * math.pi) * (np.float32(1) / plain)
    share = (np.float32(length) * (np.float32(1) / waves) - low) / (high - low)
    between = (np.float32(1) - share) * plain / factor + share * plain
    found: Floats = np.where(waves > longest, plain / factor, np.where(waves < shortest, plain, between))
    return found
