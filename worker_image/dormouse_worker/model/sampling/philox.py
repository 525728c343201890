"""Counter-based random numbers: one uniform number for (seed, choice, position), whatever else is in the batch.

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, 'Parallel Random Numbers: As Easy as 1, 2, 3' (SC11). The key is the
64-bit seed, low word first; the counter is (position, choice, 0, 0). Of the four words the first two are used.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]  # 32-bit words in 64-bit places, so that products do not overflow

_MASK = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_ROUNDS = 10


def philox4x32(counter: Words, key: Words) -> Words:
    """Return four words per row: counter [N, 4], key [N, 2] → [N, 4]."""
    c0, c1, c2, c3 = counter.T
    k0, k1 = key.T
    for _ in range(_ROUNDS):
        product0, product1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> _SHIFT) ^ c1 ^ k0,
            product1 & _MASK,
            (product0 >> _SHIFT) ^ c3 ^ k1,
            product0 & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return np.stack([c0, c1, c2, c3], axis=1)


def uniforms(seeds: list[int], positions: list[int], choices: list[int]) -> npt.NDArray[np.float64]:
    """Return one number in [0, 1) with 53 random bits per row: 64-bit seeds, positions and choices below 2³²."""
    seed = np.array(seeds, dtype=np.uint64)
    counter = np.zeros((len(seeds), 4), dtype=np.uint64)
    counter[:, 0] = positions
    counter[:, 1] = choices
    words = philox4x32(counter, np.stack([seed & _MASK, seed >> _SHIFT], axis=1))
    bits = (words[:, 0] >> np.uint64(5)) << np.uint64(26) | words[:, 1] >> np.uint64(6)
    return bits.astype(np.float64) * 2.0**-53
