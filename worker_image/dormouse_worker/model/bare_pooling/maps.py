"""Linear maps and norms of a model for vectors: how the kernels find each in memory, and what comes of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np

from dormouse_worker.model.bare.weight_plan import Maps
from dormouse_worker.model.bare_pooling.packed import STEP_OPERATIONS
from dormouse_worker.model.scratch import Floats, address_of
from dormouse_worker.model.tensors import floats_of, pointer_to
from dormouse_worker.model.weights.store import WeightStore
from dormouse_worker.native import abi
from dormouse_worker.native.library import Kernels

_CODES: Mapping[str, int] = MappingProxyType({"float32": abi.FLOAT32, "bfloat16": abi.BFLOAT16})


class KernelMaps:
    """Maps of one type of weights; rows and products are float32. Nothing of it is its own memory."""

    def __init__(self, maps: Maps, dtype: str, kernels: Kernels) -> None:
        self._maps, self._dtype, self.kernels = maps, dtype, kernels

    def __repr__(self) -> str:
        return f"KernelMaps({self._dtype}, {self.kernels.name})"

    def linear(self, name: str, outputs: slice = slice(None)) -> abi.Linear:
        """Return the map whose weight and bias have names that begin so, or some of its outputs."""
        found = self._maps(name)
        bias = None if found.bias is None else pointer_to(found.bias[outputs])
        return abi.Linear(pointer_to(found.weight[outputs]), bias, abi.PLAIN, None)

    def multiply(self, rows: Floats, linear: abi.Linear, out: Floats) -> None:
        """Fill `out` [n, outputs] with rows [n, inputs] times the map, its bias added."""
        sizes = {"num_rows": len(rows), "columns": rows.shape[1], "num_outputs": out.shape[1]}
        self.kernels.multiply(_CODES[self._dtype], address_of(rows), linear, address_of(out), **sizes)

    def steps(self, rows: Floats, linear: abi.Linear, out: Floats) -> Iterator[None]:
        """Do the same; yield behind each so many rows. Every row has the same bits among however many."""
        most = max(1, STEP_OPERATIONS // (2 * rows.shape[1] * out.shape[1]))
        for start in range(0, len(rows), most):
            self.multiply(rows[start : start + most], linear, out[start : start + most])
            yield

    def product(self, rows: Floats, linear: abi.Linear, num_outputs: int) -> Floats:
        """Return the same in memory of its own."""
        out = np.empty((len(rows), num_outputs), dtype=np.float32)
        self.multiply(rows, linear, out)
        return out


class KernelNorms:
    """Norms by mean and variance, or by the root mean square. Holds float32 of weights that have other types."""

    def __init__(self, weights: WeightStore, kernels: Kernels, eps: float, *, keeps_mean: bool = False) -> None:
        self._weights, self._kernels, self._eps, self._keeps_mean = weights, kernels, eps, keeps_mean
        self._held: list[Floats] = []  # to which norms point

    def __repr__(self) -> str:
        return f"KernelNorms({self._eps}, {'root mean square' if self._keeps_mean else 'mean and variance'})"

    def norm(self, name: str, *, has_bias: bool) -> abi.LayerNorm:
        """Return the norm whose weight and bias have names that begin so."""
        found = [floats_of(self._weights.tensor(f"{name}.{kind}")) for kind in ("weight", "bias")[: 1 + has_bias]]
        self._held += found
        bias = address_of(found[1]) if has_bias else None
        return abi.LayerNorm(address_of(found[0]), bias, self._eps, self._keeps_mean)

    def apply(self, norm: abi.LayerNorm, rows: Floats, more: Floats | None, out: Floats) -> None:
        """Fill `out` [n, columns] with the norm of the sum of both, row by row; it may be one of them."""
        other = None if more is None else address_of(more)
        sizes = {"num_rows": len(rows), "columns": rows.shape[1]}
        self._kernels.normalize(address_of(rows), other, norm, address_of(out), **sizes)
