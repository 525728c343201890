"""Layers behind the pooling, computed by our kernels in float32. They are small, and stay in host memory asleep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.files.safetensors_files import StoredTensor
from dormouse_worker.model.bare_pooling.dense_files import TYPES, DenseFiles
from dormouse_worker.model.scratch import Floats, address_of
from dormouse_worker.model.tensors import ARRAY_DTYPES, as_floats
from dormouse_worker.native import abi
from dormouse_worker.native.library import Kernels


def _sigmoid(rows: Floats) -> Floats:
    found: Floats = np.float32(1) / (np.float32(1) + np.exp(-rows))
    return found


ACTIVATIONS: Mapping[str, Callable[[Floats], Floats]] = MappingProxyType(  # but GELU, which is the kernels'
    {
        "none": lambda rows: rows,
        "relu": lambda rows: np.maximum(rows, 0),
        "sigmoid": _sigmoid,
        "tanh": np.tanh,
    }
)


def activate(kind: str, rows: Floats, kernels: Kernels) -> Floats:
    """Return what an activation makes of rows, which may be changed."""
    if kind != "gelu":
        return ACTIVATIONS[kind](rows)
    kernels.gate(abi.GELU, address_of(rows), None, count=rows.size)
    return rows


class DenseLayer:
    """One layer. Owns its weights."""

    def __init__(self, files: DenseFiles, kernels: Kernels) -> None:
        """Read its file. Raises ModelInvalid."""
        self._files, self._kernels = files, kernels
        self._weight = _read(files.weight)
        self._bias = None if files.bias is None else _read(files.bias)

    def __repr__(self) -> str:
        return f"DenseLayer({self._files.weight.shape}, {self._files.activation})"

    @property
    def size(self) -> int:
        """Return the numbers that come out."""
        return self._files.size

    def __call__(self, rows: Floats) -> Floats:
        """Return [n, out] of rows [n, in], each with the same bits whatever the others are."""
        bias = None if self._bias is None else address_of(self._bias)
        linear = abi.Linear(address_of(self._weight), bias, abi.PLAIN, None)
        out = np.empty((len(rows), self.size), dtype=np.float32)
        sizes = {"num_rows": len(rows), "columns": rows.shape[1], "num_outputs": self.size}
        self._kernels.multiply(abi.FLOAT32, address_of(rows), linear, address_of(out), **sizes)
        return activate(self._files.activation, out, self._kernels)


def _read(tensor: StoredTensor) -> Floats:
    try:
        with tensor.file.open("rb") as file:
            file.seek(tensor.start)
            data = np.frombuffer(bytearray(file.read(tensor.end - tensor.start)), dtype=np.uint8)
    except OSError as error:
        raise ModelInvalid(f"{tensor.file}: cannot be read: {error}") from error
    if len(data) < tensor.end - tensor.start:
        raise ModelInvalid(f"{tensor.file}: cut while it was read; copy the file again")
    return as_floats(data, ARRAY_DTYPES[TYPES[tensor.dtype]]).reshape(tensor.shape)
