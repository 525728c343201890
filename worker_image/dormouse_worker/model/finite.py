"""Whether numbers are finite. Weights that are not make a model say nonsense, or one token for ever."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from dormouse_worker.model.tensors import Dtype, Tensor, as_array, name_of, pointer_to
from dormouse_worker.native.library import Missing, load_kernels

_EXPONENTS: Mapping[str, int] = MappingProxyType(  # all ones: infinite, or no number
    {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F80_0000, "float64": 0x7FF0_0000_0000_0000}
)


def are_finite(data: Tensor, dtype: Dtype) -> bool:
    """Return whether numbers of this type, the bytes uint8 [n] of the host, are finite; True for types not known here.

    Whole numbers and those of 8 bits, whose scales stand elsewhere, are not looked at.
    """
    exponent = _EXPONENTS.get(name_of(dtype))
    if exponent is None:
        return True
    if not isinstance(kernels := load_kernels(), Missing):
        return kernels.are_finite(pointer_to(data), len(data), dtype.itemsize, exponent)
    words = as_array(data).view(np.dtype(f"u{dtype.itemsize}"))
    return int((words & words.dtype.type(exponent)).max(initial=0)) < exponent
