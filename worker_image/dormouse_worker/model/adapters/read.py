"""Reads an adapter's matrices into a slot's bytes in host memory, scaled, in the type of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from dormouse_worker.common.errors import AdapterInvalid
from dormouse_worker.files.adapter_files import AdapterFiles, Pair
from dormouse_worker.files.safetensors_files import StoredTensor
from dormouse_worker.files.soft_prompt_files import TENSOR
from dormouse_worker.model.adapters.layout import AdaptedMap, AdapterLayout
from dormouse_worker.model.checksum import BLOCK_BYTES, checksum, combine
from dormouse_worker.model.finite import are_finite
from dormouse_worker.model.parallel.shards import Share
from dormouse_worker.model.pieces import Pause
from dormouse_worker.model.tensors import as_array

OUTPUTS, INPUTS = 0, 1  # dimensions of a weight, and of B and A
TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def read_adapter(files: AdapterFiles, layout: AdapterLayout, slot: torch.Tensor, pause: Pause) -> str:
    """Fill a slot, uint8 [slot_bytes] of the host, and return the digest of the files that it was filled from.

    The scale is part of B: a product with it is the product of the scaled pair. Raises AdapterInvalid, and the slot's
    contents count for nothing.
    """
    for block in _blocks(slot):
        as_array(block).fill(0)
        pause()
    fills: dict[StoredTensor, Callable[[torch.Tensor], object]] = {}
    if files.prompt is not None:
        count = files.num_virtual_tokens
        vectors = layout.keys_of(slot, count).view(count, -1) if files.has_keys else layout.prompt_of(slot, 0, count)
        fills[files.prompt] = vectors.copy_
    for each in layout.maps:
        a, b = layout.a_of(slot, each), layout.b_of(slot, each)
        for part, module in enumerate(each.modules):
            if (pair := files.pairs.get(module)) is not None:
                fills.update(_fills(pair, part, each, a, b))
        pause()

    def take(tensor: StoredTensor, raw: bytearray) -> None:
        if (fill := fills.get(tensor)) is not None:  # else another stage has it
            fill(_matrix(tensor, raw))
        pause()

    digest = files.read(take)
    for block in _blocks(slot):
        if not are_finite(block, layout.dtype):
            raise AdapterInvalid(f"{files.path}: {_culprit(files, layout, slot)} has numbers that are not finite")
        pause()
    return digest


def slot_checksum(slot: torch.Tensor, pause: Pause) -> int:
    """Return the checksum of a slot."""
    sums = []
    for number, block in enumerate(_blocks(slot)):
        sums.append(checksum(block, number))
        pause()
    return combine(sums)


def _blocks(slot: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield a slot in blocks that are done with within a millisecond or so."""
    for start in range(0, len(slot), BLOCK_BYTES):
        yield slot[start : start + BLOCK_BYTES]


def _fills(
    pair: Pair, part: int, each: AdaptedMap, a: torch.Tensor, b: torch.Tensor
) -> dict[StoredTensor, Callable[[torch.Tensor], object]]:
    """Return how each of a pair's two matrices comes to its place."""
    my_a, my_b = a[part, : pair.rank], b[: pair.rank, each.starts[part] : each.starts[part + 1]]
    share = each.shares[part]
    return {
        pair.a: lambda matrix: my_a.copy_(_mine(matrix, share, INPUTS)),
        pair.b: lambda matrix: my_b.copy_((_mine(matrix, share, OUTPUTS).float() * pair.scale).T),
    }


def _mine(matrix: torch.Tensor, share: Share | None, dim: int) -> torch.Tensor:
    """Return what a rank has of a matrix [rank, inputs] or [outputs, rank], if its weight is cut along these."""
    if share is None or share.spans is None or share.dim != dim:
        return matrix
    return torch.cat([matrix.narrow(dim, start, stop - start) for start, stop in share.spans], dim)


def _matrix(tensor: StoredTensor, raw: bytearray) -> torch.Tensor:
    return torch.frombuffer(raw, dtype=TYPES[tensor.dtype]).view(tensor.shape)


def _culprit(files: AdapterFiles, layout: AdapterLayout, slot: torch.Tensor) -> str:
    """Return the module whose matrices are not finite in the model's type, or the soft prompt."""
    if files.prompt is not None:
        return TENSOR
    for each in layout.maps:
        a, b = layout.a_of(slot, each), layout.b_of(slot, each)
        for part, module in enumerate(each.modules):
            mine = b[:, each.starts[part] : each.starts[part + 1]]
            if module in files.pairs and not bool(a[part].isfinite().all() and mine.isfinite().all()):
                return module
    raise AssertionError("only modules of the adapter were filled")
