"""An encoder's linear maps: how the kernels find each in memory, and their products with rows."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from dormouse_worker.model.bare.weight_plan import Maps
from dormouse_worker.model.scratch import Floats, address_of
from dormouse_worker.model.tensors import pointer_to
from dormouse_worker.native import abi
from dormouse_worker.native.library import Kernels

_CODES: Mapping[str, int] = MappingProxyType({"float32": abi.FLOAT32, "bfloat16": abi.BFLOAT16})


class KernelMaps:
    """Maps of one type of weights; rows and products are float32. Nothing of it is its own memory."""

    def __init__(self, maps: Maps, dtype: str, kernels: Kernels) -> None:
        self._maps, self._dtype, self._kernels = maps, dtype, kernels

    def __repr__(self) -> str:
        return f"KernelMaps({self._dtype}, {self._kernels.name})"

    def linear(self, name: str) -> abi.Linear:
        """Return the map whose weight and bias have names that begin so."""
        found = self._maps(name)
        return abi.Linear(pointer_to(found.weight), pointer_to(found.bias), abi.PLAIN, None)

    def multiply(self, rows: Floats, linear: abi.Linear, out: Floats) -> None:
        """Fill `out` [n, outputs] with rows [n, inputs] times the map, its bias added."""
        sizes = {"num_rows": len(rows), "columns": rows.shape[1], "num_outputs": out.shape[1]}
        self._kernels.multiply(_CODES[self._dtype], address_of(rows), linear, address_of(out), **sizes)

    def product(self, rows: Floats, linear: abi.Linear, num_outputs: int) -> Floats:
        """Return the same in memory of its own."""
        out = np.empty((len(rows), num_outputs), dtype=np.float32)
        self.multiply(rows, linear, out)
        return out
