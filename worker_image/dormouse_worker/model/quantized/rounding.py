"""Rounds plain weights to fewer bits while they are read: whole rows, each for itself, on the processor. No torch.

`int8` and `int4` say what the numbers stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from dormouse_worker.model.quantized.blocks import CHUNK, CHUNK_BYTES, MOST, ZERO, block_size_of
from dormouse_worker.model.scratch import Floats, address_of
from dormouse_worker.native.library import Missing, load_kernels

NEXT_TO_NOTHING = 1e-30  # rows that are less are zeros
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Rounding:
    """One way."""

    name: str
    row_bytes: Callable[[int], int]  # of a row of so many columns
    quantize_rows: Callable[[Floats], tuple[Bytes, Floats]]  # finite [n, in] -> uint8 [n, bytes], scales [n]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


def row_bytes_of_int4(columns: int) -> int:
    """Return the bytes of a row of so many inputs; the last chunk is filled up."""
    return -(-columns // CHUNK) * CHUNK_BYTES


def mix(rows: Floats) -> Floats:
    """Return what `rotation.mix` does, with the same bits: the same additions, of many blocks at once."""
    size = block_size_of(rows.shape[1])
    mixed, distance = np.ascontiguousarray(rows.reshape(-1, size).T), 1  # [place in a block, blocks]
    while distance < size:
        pairs, then = mixed.reshape(-1, 2, distance, mixed.shape[1]), np.empty_like(mixed)
        added = then.reshape(pairs.shape)
        np.add(pairs[:, 0], pairs[:, 1], out=added[:, 0])
        np.subtract(pairs[:, 0], pairs[:, 1], out=added[:, 1])
        mixed, distance = then, 2 * distance
    found: Floats = np.ascontiguousarray(mixed.T).reshape(rows.shape)
    return found


def _to_int8(rows: Floats) -> tuple[Bytes, Floats]:
    turned = mix(rows) * np.float32(block_size_of(rows.shape[1]) ** -0.5)
    scales: Floats = np.abs(turned).max(1) / np.float32(MOST)
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales > NEXT_TO_NOTHING)
    turned *= inverse[:, None]
    np.rint(turned, out=turned)
    np.clip(turned, -MOST, MOST, out=turned)
    turned += ZERO
    return turned.astype(np.uint8), scales


def _to_int4(rows: Floats) -> tuple[Bytes, Floats]:
    """Round by our kernels, in a hundredth of torch's time, where there are any; both find the same."""
    kernels = load_kernels()
    if isinstance(kernels, Missing):
        return _in_torch(rows)
    plain = np.ascontiguousarray(rows)
    chunks, scales = np.empty((len(rows), row_bytes_of_int4(rows.shape[1])), np.uint8), np.empty(len(rows), np.float32)
    addresses = address_of(plain), address_of(chunks), address_of(scales)
    kernels.round_rows(*addresses, num_rows=len(rows), columns=rows.shape[1])
    return chunks, scales


def _in_torch(rows: Floats) -> tuple[Any, Any]:
    import torch

    from dormouse_worker.model.quantized.int4 import quantize_in_torch

    chunks, scales = quantize_in_torch(torch.from_numpy(rows))
    return chunks.numpy(), scales.numpy()


INT8 = Rounding("int8", lambda columns: columns, _to_int8)
INT4 = Rounding("int4", row_bytes_of_int4, _to_int4)
ROUNDINGS: Mapping[str, Rounding] = MappingProxyType({INT8.name: INT8, INT4.name: INT4})


def rounding_of(method: str, *, is_head: bool) -> Rounding:
    """Return how a linear map is rounded; of the head every token is chosen by its numbers: it has 8 bits at least."""
    return INT8 if is_head else ROUNDINGS[method]
