"""Reads tensors that lie in safetensors files under the names and in the shapes that are wanted. Never maps a file.

A mapped file that is truncated while a worker serves would end the process at the next touch; what is read is ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from dormouse_worker.common.errors import ModelChanged, ModelInvalid
from dormouse_worker.files.safetensors_files import StoredTensor
from dormouse_worker.model.tensors import Dtype, Tensor, as_array
from dormouse_worker.model.weights.layout import Slot
from dormouse_worker.model.weights.source import Read

Tensors = Mapping[str, StoredTensor]


class PlainSource:
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
        return f"{type(self).__name__}({len(self._names)} tensors)"

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

            def read(slot: Slot, start: int, end: int, target: Tensor) -> None:
                tensor = stored[slot.name]
                self.fill(files[tensor.file], tensor, slot.dtype, (start, end), target)

            yield read

    def fill(self, file: int, tensor: StoredTensor, dtype: Dtype, span: tuple[int, int], target: Tensor) -> None:
        """Fill the target, uint8, with the bytes [start, end) of the tensor, which is stored in `dtype`."""
        del dtype
        read_into(file, tensor, tensor.start + span[0], target)

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


def read_into(file: int, tensor: StoredTensor, position: int, target: Tensor) -> None:
    """Fill the target, uint8 in host memory, from this position of the file. Raises ModelChanged, ModelInvalid."""
    buffer = memoryview(as_array(target))
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
