"""What the header of a safetensors file says, checked before anybody believes it. Reads headers only; no torch.

Layout: u64 length | JSON header | data. The tensors cover the data without gaps and without sharing a byte.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from dormouse_worker.common.errors import ModelInvalid

MAX_HEADER_BYTES = 100 << 20  # the format's own limit
BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
_HEADER_LENGTH = struct.Struct("<Q")
_METADATA = "__metadata__"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file: the bytes [start, end) counted from the file's begin."""

    file: Path
    dtype: str  # a key of BITS
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """What one file holds."""

    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, str]
    raw_header: bytes  # the length and the header that were read


def read_raw_header(file: Path) -> bytes:
    """Return the length and the header as they stand in a file that was checked."""
    with file.open("rb") as stream:
        prefix = stream.read(_HEADER_LENGTH.size)
        return prefix + stream.read(*_HEADER_LENGTH.unpack(prefix))


def read_safetensors(file: Path) -> SafetensorsFile:
    """Return the file's tensors. Raises ModelInvalid naming the file, and the tensor, if anything does not add up."""
    try:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            header, raw = _read_header(file, stream, size)
    except OSError as error:
        raise ModelInvalid(f"{file}: cannot be read: {error}") from error
    base = len(raw)
    tensors = {name: _parse(file, base, name, entry) for name, entry in header.items() if name != _METADATA}
    end = _check_cover(file, base, tensors)
    if size != end:
        raise ModelInvalid(f"{file}: truncated or damaged: {size} bytes, its header needs {end}; copy the file again")
    metadata = header.get(_METADATA)
    return SafetensorsFile(tensors, metadata if isinstance(metadata, dict) else {}, raw)


def _parse(file: Path, base: int, name: str, entry: Any) -> StoredTensor:
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        start, end = entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(file, name, "is described without dtype, shape or data_offsets") from error
    numbers = (*shape, start, end)
    if any(type(number) is not int or number < 0 for number in numbers):
        raise _damaged(file, name, f"has a size or an offset that is no natural number among {numbers}")
    if not isinstance(dtype, str) or dtype not in BITS:
        raise _damaged(file, name, f"is of type {dtype!r}; the format knows {', '.join(BITS)}")
    num_bits = math.prod(shape) * BITS[dtype]
    if num_bits != (end - start) * 8:
        raise _damaged(file, name, f"is {dtype} {list(shape)} and takes the bytes {start} to {end}, which do not match")
    return StoredTensor(file, dtype, shape, base + start, base + end)


def _check_cover(file: Path, base: int, tensors: Mapping[str, StoredTensor]) -> int:
    """Return the end of the data."""
    position = base
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if tensor.start != position:
            what = "shares bytes with another tensor" if tensor.start < position else "begins behind a gap"
            raise _damaged(file, name, f"{what}: at byte {tensor.start - base} where {position - base} is due")
        position = tensor.end
    return position


def _read_header(file: Path, stream: BinaryIO, size: int) -> tuple[dict[str, Any], bytes]:
    prefix = stream.read(_HEADER_LENGTH.size)
    if len(prefix) < _HEADER_LENGTH.size:
        raise ModelInvalid(f"{file}: truncated: {size} bytes, a safetensors file has at least 8; copy the file again")
    (length,) = _HEADER_LENGTH.unpack(prefix)
    if length > min(MAX_HEADER_BYTES, size):
        raise ModelInvalid(f"{file}: truncated or damaged: header of {length} bytes in {size}; copy the file again")
    try:
        raw = stream.read(length)
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ModelInvalid(f"{file}: header is no JSON ({error}); copy the file again") from error
    if not isinstance(header, dict):
        raise ModelInvalid(f"{file}: header is no JSON object; copy the file again")
    return header, prefix + raw


def _damaged(file: Path, name: str, what: str) -> ModelInvalid:
    return ModelInvalid(f"{file}: tensor {name!r} {what}; copy the file again")
