"""Reads tensors that lie in safetensors files under the names and in the shapes of the module's own. Never maps a file.

A mapped file that is truncated while a worker serves would end the process at the next touch; what is read is ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch

from dormouse_worker.common.errors import ModelChanged, ModelInvalid
from dormouse_worker.files.gguf.types import BLOCKS
from dormouse_worker.files.safetensors_files import StoredTensor
from dormouse_worker.model.weights.layout import Slot
from dormouse_worker.model.weights.source import Read

Tensors = Mapping[str, StoredTensor]
STORED_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "BOOL": torch.bool,
        "U8": torch.uint8,
        "I8": torch.int8,
        "I16": torch.int16,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "I32": torch.int32,
        "F32": torch.float32,
        "I64": torch.int64,
        "F64": torch.float64,
    }
)
FILE_DTYPES = MappingProxyType(
    {**STORED_DTYPES, "F8_E4M3": torch.float8_e4m3fn}  # of parts alone, with scales
    | dict.fromkeys(BLOCKS.keys() - STORED_DTYPES.keys(), torch.uint8)  # of GGUF: bytes
)
_SERIAL_ELEMENTS = 1 << 14  # few enough that torch converts them on the calling thread, of which there are many


class CheckpointSource:
    """Implements `WeightSource` over files whose headers `list_tensors` reads anew each time."""

    path: Literal["fast"] = "fast"
    held_bytes = 0

    def __init__(self, list_tensors: Callable[[], Tensors], names: Mapping[str, str]) -> None:
        """`names` maps the name of each slot that is read to the one in the files."""
        self._list_tensors = list_tensors
        self._names = dict(names)
        self._first_seen: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._files: dict[str, Path] = {}  # by slot, as found by the last `open`

    def __repr__(self) -> str:
        return f"CheckpointSource({len(self._names)} tensors)"

    def origin(self, name: str) -> str:
        """See `WeightSource`."""
        return f"{self._files[name]}: {self._names[name]}"

    @contextmanager
    def open(self) -> Iterator[Read]:
        """See `WeightSource`."""
        stored = self._find(self._list_tensors())
        self._files = {name: tensor.file for name, tensor in stored.items()}
        with ExitStack() as stack:
            files = {file: _open(stack, file) for file in {tensor.file for tensor in stored.values()}}

            def read(slot: Slot, start: int, end: int, target: torch.Tensor) -> None:
                tensor = stored[slot.name]
                _read_converted(files[tensor.file], tensor, slot.dtype, (start, end), target)

            yield read

    def _find(self, tensors: Tensors) -> Tensors:
        stored: dict[str, StoredTensor] = {}
        for slot_name, name in self._names.items():
            tensor = tensors.get(name)
            if tensor is None:
                raise ModelChanged(f"{name} is no longer among the model's weights; restart the worker")
            now = (tensor.dtype, tensor.shape)
            before = self._first_seen.setdefault(name, now)
            if now != before:
                raise ModelChanged(
                    f"{tensor.file}: {name} was {_told(*before)} and is {_told(*now)}; restart the worker"
                )
            stored[slot_name] = tensor
        return stored


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
        _read(file, tensor, tensor.start + span[0], target)
        return
    converted = target.view(dtype)
    first = span[0] // dtype.itemsize
    for done in range(0, len(converted), _SERIAL_ELEMENTS):
        part = converted[done : done + _SERIAL_ELEMENTS]
        raw = torch.empty(len(part) * stored_dtype.itemsize, dtype=torch.uint8)
        _read(file, tensor, tensor.start + (first + done) * stored_dtype.itemsize, raw)
        part.copy_(raw.view(stored_dtype))


def _read(file: int, tensor: StoredTensor, position: int, target: torch.Tensor) -> None:
    array: Any = target.numpy()
    buffer = memoryview(array)
    try:
        while buffer:
            num_bytes = os.preadv(file, [buffer], position)
            if num_bytes == 0:
                raise ModelChanged(f"{tensor.file}: cut to {position} bytes while it was read; copy the file again")
            buffer, position = buffer[num_bytes:], position + num_bytes
    except OSError as error:
        raise ModelInvalid(f"{tensor.file}: cannot be read: {error}") from error


def _open(stack: ExitStack, file: Path) -> int:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ModelInvalid(f"{file}: cannot be opened: {error}") from error
    stack.callback(os.close, descriptor)
    return descriptor


def _told(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype} {list(shape)}"
