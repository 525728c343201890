"""Which types files have and torch has, and how one becomes the other while it is read."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

from dormouse_worker.files.gguf.types import BLOCKS
from dormouse_worker.files.safetensors_files import StoredTensor
from dormouse_worker.model.tensors import FILE_TYPES, Dtype, Tensor
from dormouse_worker.model.weights.checkpoint import PlainSource, read_into

STORED_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {stored: getattr(torch, name) for stored, name in FILE_TYPES.items()}
)
FILE_DTYPES = MappingProxyType(
    {**STORED_DTYPES, "F8_E4M3": torch.float8_e4m3fn}  # of parts alone, with scales
    | dict.fromkeys(BLOCKS.keys() - STORED_DTYPES.keys(), torch.uint8)  # of GGUF: bytes
)
_SERIAL_ELEMENTS = 1 << 14  # few enough that torch converts them on the calling thread, of which there are many


class CheckpointSource(PlainSource):
    """A `PlainSource` that converts to the types that are wanted."""

    def fill(self, file: int, tensor: StoredTensor, dtype: Dtype, span: tuple[int, int], target: Tensor) -> None:
        """See `PlainSource`."""
        _read_converted(file, tensor, dtype, span, target)


def can_convert(stored: str, wanted: torch.dtype) -> bool:
    """Return whether tensors of this type in a file can be read as the wanted type."""
    dtype = STORED_DTYPES.get(stored)
    return dtype is not None and (dtype == wanted or (dtype.is_floating_point and wanted.is_floating_point))


def _read_converted(
    file: int, tensor: StoredTensor, dtype: torch.dtype, span: tuple[int, int], target: torch.Tensor
) -> None:
    """Fill the target with the bytes [start, end) of the tensor in `dtype`; uint8 = as they are."""
    stored_dtype = FILE_DTYPES[tensor.dtype]
    if dtype in (stored_dtype, torch.uint8):
        read_into(file, tensor, tensor.start + span[0], target)
        return
    converted = target.view(dtype)
    first = span[0] // dtype.itemsize
    for done in range(0, len(converted), _SERIAL_ELEMENTS):
        part = converted[done : done + _SERIAL_ELEMENTS]
        raw = torch.empty(len(part) * stored_dtype.itemsize, dtype=torch.uint8)
        read_into(file, tensor, tensor.start + (first + done) * stored_dtype.itemsize, raw)
        part.copy_(raw.view(stored_dtype))
