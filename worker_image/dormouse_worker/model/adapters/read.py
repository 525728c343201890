"""Reads an adapter's matrices into a slot's bytes in host memory, scaled, in the type of the model."""

from __future__ import annotations

import torch

from dormouse_worker.common.errors import AdapterInvalid
from dormouse_worker.files.adapter_files import AdapterFiles, Pair
from dormouse_worker.files.safetensors_files import StoredTensor
from dormouse_worker.model.adapters.layout import AdaptedMap, AdapterLayout
from dormouse_worker.model.finite import are_finite

TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def read_adapter(files: AdapterFiles, layout: AdapterLayout, slot: torch.Tensor) -> None:
    """Fill a slot, uint8 [slot_bytes] of the host. Raises AdapterInvalid, and the slot's contents count for nothing.

    The scale is part of B: a product with it is the product of the scaled pair.
    """
    slot.zero_()
    for each in layout.maps:
        a, b = layout.a_of(slot, each), layout.b_of(slot, each)
        for part, module in enumerate(each.modules):
            if (pair := files.pairs.get(module)) is not None:
                _read_pair(pair, part, each, a, b)
    if not are_finite(slot, layout.dtype):
        raise AdapterInvalid(f"{files.path}: {_culprit(files, layout, slot)} has numbers that are not finite")


def _read_pair(pair: Pair, part: int, each: AdaptedMap, a: torch.Tensor, b: torch.Tensor) -> None:
    start, end = each.starts[part], each.starts[part + 1]
    a[part, : pair.rank] = _read(pair.a)
    b[: pair.rank, start:end] = (_read(pair.b).float() * pair.scale).T


def _read(tensor: StoredTensor) -> torch.Tensor:
    raw = bytearray(tensor.end - tensor.start)
    try:
        with tensor.file.open("rb") as stream:
            stream.seek(tensor.start)
            num_bytes = stream.readinto(raw)
    except OSError as error:
        raise AdapterInvalid(f"{tensor.file}: cannot be read: {error}") from error
    if num_bytes != len(raw):
        raise AdapterInvalid(f"{tensor.file}: it was cut off while it was read; copy the adapter again")
    return torch.frombuffer(raw, dtype=TYPES[tensor.dtype]).view(tensor.shape)


def _culprit(files: AdapterFiles, layout: AdapterLayout, slot: torch.Tensor) -> str:
    """Return the module whose matrices are not finite in the model's type."""
    for each in layout.maps:
        a, b = layout.a_of(slot, each), layout.b_of(slot, each)
        for part, module in enumerate(each.modules):
            mine = b[:, each.starts[part] : each.starts[part + 1]]
            if module in files.pairs and not bool(a[part].isfinite().all() and mine.isfinite().all()):
                return module
    raise AssertionError("only modules of the adapter were filled")
