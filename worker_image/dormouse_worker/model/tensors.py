"""What torch's tensors and numpy's arrays do under different names, so that one piece of code keeps memory of either.

An engine without torch has arrays where others have tensors. Imports torch only where it is handed a tensor. numpy has
no bfloat16: there it is a type of one field of 16 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dormouse_worker.model.scratch import address_of

if TYPE_CHECKING:
    import torch

Tensor = Any  # torch.Tensor, or npt.NDArray
Dtype = Any  # torch.dtype, or np.dtype
BFLOAT16 = np.dtype([("bfloat16", "<u2")])
FILE_TYPES = MappingProxyType(  # what safetensors files call a type, and what torch calls it
    {
        "BOOL": "bool",
        "U8": "uint8",
        "I8": "int8",
        "I16": "int16",
        "F16": "float16",
        "BF16": "bfloat16",
        "I32": "int32",
        "F32": "float32",
        "I64": "int64",
        "F64": "float64",
    }
)
ARRAY_DTYPES = MappingProxyType({"float32": np.dtype(np.float32), "bfloat16": BFLOAT16})


def name_of(dtype: Dtype) -> str:
    """Return what settings and files call a type: float32."""
    if isinstance(dtype, np.dtype):
        return dtype.names[0] if dtype.names else dtype.name
    return str(dtype).removeprefix("torch.")


def int8_beside(dtype: Dtype) -> Dtype:
    """Return int8 as torch's type or numpy's, as this one is."""
    if isinstance(dtype, np.dtype):
        return np.dtype(np.int8)
    import torch

    return torch.int8


def pointer_to(tensor: Tensor) -> int:
    """Return where a dense one lies in the host's memory."""
    if isinstance(tensor, np.ndarray):
        return address_of(tensor)
    address: int = tensor.data_ptr()
    return address


def zeros(shape: Sequence[int], dtype: Dtype, device: torch.device | None) -> Tensor:
    """Return zeros on a device, None = in the host's memory; an array where the type is numpy's."""
    if isinstance(dtype, np.dtype):
        return np.zeros(shape, dtype)
    import torch

    return torch.zeros(tuple(shape), dtype=dtype, device=device)


def take(rows: Tensor, ids: Sequence[int]) -> Tensor:
    """Return a copy of these rows of the first dimension, where they are."""
    return rows[np.asarray(ids)] if isinstance(rows, np.ndarray) else rows.index_select(0, _index(rows, ids))


def put(rows: Tensor, ids: Sequence[int], contents: Tensor) -> None:
    """Write these rows."""
    if isinstance(rows, np.ndarray):
        rows[np.asarray(ids)] = contents
    else:
        rows.index_copy_(0, _index(rows, ids), contents.to(rows.device))


def copy_of(tensor: Tensor) -> Tensor:
    """Return a copy beside it."""
    return tensor.copy() if isinstance(tensor, np.ndarray) else tensor.clone()


def empty_beside(other: Tensor, like: Tensor) -> Tensor:
    """Return one of the shape and type of `like`, where `other` is; what it holds is unknown."""
    if isinstance(other, np.ndarray):
        return np.empty_like(like)
    return other.new_empty(like.shape)


def bytes_of(tensor: Tensor) -> Tensor:
    """Return uint8 [n]; a view of a dense one."""
    if isinstance(tensor, np.ndarray):
        return tensor.reshape(-1).view(np.uint8)
    import torch

    return tensor.reshape(-1).view(torch.uint8)


def as_array(tensor: Tensor) -> Any:
    """Return an array that is a view of what lies in the host's memory, of a type that numpy has."""
    return tensor if isinstance(tensor, np.ndarray) else tensor.numpy()


def beside(array: npt.NDArray[Any], other: Tensor) -> Tensor:
    """Return an array as what `other` is, bit for bit its type."""
    if isinstance(other, np.ndarray):
        return array.view(other.dtype)
    import torch

    return torch.from_numpy(array).view(other.dtype)


def as_floats(data: Tensor, dtype: Dtype) -> npt.NDArray[Any]:
    """Return bytes uint8 [n] of the host as numbers that numpy can compare; exact."""
    if dtype == BFLOAT16:
        words: npt.NDArray[Any] = data.view(np.uint16).astype(np.uint32) << 16
        return words.view(np.float32)
    if isinstance(data, np.ndarray):
        return data.view(dtype)
    floats: npt.NDArray[Any] = data.view(dtype).double().numpy()
    return floats


def floats_of(tensor: Tensor) -> npt.NDArray[np.float32]:
    """Return numbers of at most 32 bits in the host's memory as float32."""
    if isinstance(tensor, np.ndarray):
        return as_floats(bytes_of(tensor), tensor.dtype).reshape(tensor.shape)
    floats: npt.NDArray[np.float32] = tensor.float().numpy()
    return floats


def _index(rows: Any, ids: Sequence[int]) -> Any:
    import torch

    return torch.as_tensor(ids).to(rows.device)
