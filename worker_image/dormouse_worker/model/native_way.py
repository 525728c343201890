"""Operations of transformers' modules by our kernels, where processors multiply bfloat16 but not whole tiles of it.

On a Zen 5 torch multiplies at 290 GFLOP/s of a core in small steps and attends at 80; our kernels do at 420 and 210.
Threads of torch look for work for milliseconds behind each operation, and ours would share their cores with them: so
what is left for torch is done by one thread, unless it is large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from dormouse_worker.common.ipc import NATIVE
from dormouse_worker.common.settings import AUTO
from dormouse_worker.model.attention.native_plan import plan_of_all
from dormouse_worker.model.context import AttentionCall
from dormouse_worker.model.kv_cache import LayerCache
from dormouse_worker.model.operations import LARGE
from dormouse_worker.model.processors import CPUINFO, multiply_tiles
from dormouse_worker.native import abi
from dormouse_worker.native.library import Kernels, Missing, load_kernels

_WHOLE = 16  # numbers: heads that are no multiple of it take four times as long, so they are filled up with zeros
_MOST_COLUMNS = 1 << 16  # of a row that a norm takes


@dataclass(frozen=True, slots=True)
class Most:
    """What one call may take: about a millisecond on two cores. Whoever computes in pieces stops between them."""

    products: int = 1 << 30  # floating-point operations
    attention: int = 1 << 29


class NativeWay(TorchFunctionMode):
    """Computes what it can by our kernels, in the thread that entered it; what else there is goes to torch.

    A row's bits depend on its own sequence or picture alone, and not on the steps.
    """

    def __init__(self, kernels: Kernels, num_threads: int, most: Most | None = None) -> None:
        """`num_threads` of torch are for large operations."""
        super().__init__()
        self._kernels = kernels
        self._num_threads = num_threads
        self._most = most or Most()

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        way = _WAYS.get(function)
        torch.set_num_threads(1)
        try:
            result = None if way is None else way(self, *args, **(kwargs or {}))
            if result is not None:
                return result
            if function in LARGE:
                torch.set_num_threads(self._num_threads)
            return function(*args, **(kwargs or {}))
        finally:
            torch.set_num_threads(self._num_threads)

    def linear(self, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor | None:
        """Return [..., outputs] of rows [..., columns]; None = this is torch's."""
        if not _is_ours(rows, weight, bias) or weight.dim() != 2 or not weight.is_contiguous():
            return None
        num_outputs, columns = weight.shape
        flat = rows.reshape(-1, columns).contiguous()
        out = rows.new_empty((len(flat), num_outputs))
        shift = None if bias is None else bias.contiguous()
        described = abi.Linear(weight.data_ptr(), None if shift is None else shift.data_ptr())
        for begin, end in _stretches(len(flat), self._most.products // (2 * columns * num_outputs)):
            part, to = flat[begin:end], out[begin:end]
            sizes = {"num_rows": end - begin, "columns": columns, "num_outputs": num_outputs}
            self._kernels.multiply_halves(part.data_ptr(), described, to.data_ptr(), **sizes)
        return out.view(*rows.shape[:-1], num_outputs)

    def grouped_mm(
        self, rows: torch.Tensor, weights: torch.Tensor, *, offs: torch.Tensor | None = None, **options: Any
    ) -> torch.Tensor | None:
        """Return rows [T, columns] times the map [columns, outputs] of their group, which ends at `offs`.

        None = this is torch's; maps lie as a module has them, [outputs, columns].
        """
        is_plain = offs is not None and weights.dim() == 3 and not any(value is not None for value in options.values())
        if not is_plain or not _is_ours(rows, weights) or not weights.transpose(1, 2).is_contiguous():
            return None
        columns, num_outputs = weights.shape[1:]
        dense, out, begin = rows.contiguous(), rows.new_empty((len(rows), num_outputs)), 0
        assert offs is not None, "it is plain"
        for group, end in enumerate(offs.tolist()):
            linear, part, to = abi.Linear(weights[group].data_ptr()), dense[begin:end], out[begin:end]
            sizes = {"num_rows": end - begin, "columns": columns, "num_outputs": num_outputs}
            self._kernels.multiply_halves(part.data_ptr(), linear, to.data_ptr(), **sizes)
            begin = end
        return out

    def layer_norm(
        self,
        rows: torch.Tensor,
        normalized_shape: Any,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        eps: float = 1e-5,
    ) -> torch.Tensor | None:
        """Return the norm of each row; None = this is torch's."""
        columns = rows.shape[-1]
        is_of_rows = len(normalized_shape) == 1 and columns <= _MOST_COLUMNS
        if weight is None or not is_of_rows or not _is_ours(rows, weight, bias):
            return None
        dense, wide = rows.contiguous(), [None if part is None else part.float() for part in (weight, bias)]
        described = abi.LayerNorm(*(None if part is None else part.data_ptr() for part in wide), eps)
        out = torch.empty_like(dense)
        sizes = {"num_rows": dense.numel() // columns, "columns": columns}
        self._kernels.normalize_halves(dense.data_ptr(), described, out.data_ptr(), **sizes)
        return out

    def gelu(self, numbers: torch.Tensor, *, approximate: str = "none") -> torch.Tensor | None:
        """Return what GELU lets through; None = this is torch's."""
        return self._gated(abi.GELU if approximate == "none" else abi.GELU_TANH, numbers)

    def silu(self, numbers: torch.Tensor, *, inplace: bool = False) -> torch.Tensor | None:
        """Return what SiLU lets through; None = this is torch's."""
        return None if inplace else self._gated(abi.SILU, numbers)

    def _gated(self, kind: int, numbers: torch.Tensor) -> torch.Tensor | None:
        if not _is_ours(numbers):
            return None
        out = numbers.clone(memory_format=torch.contiguous_format)
        self._kernels.gate_halves(kind, out.data_ptr(), count=out.numel())
        return out

    def add(self, numbers: torch.Tensor, others: Any, **options: Any) -> torch.Tensor | None:
        """Return the sum of two of one shape as dense rows; None = this is torch's.

        Convolutions leave patches as columns, which torch keeps so behind each sum: eight times as slow.
        """
        if options or not isinstance(others, torch.Tensor) or numbers.shape != others.shape:
            return None
        return numbers.contiguous() + others.contiguous()

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
    ) -> torch.Tensor | None:
        """Return [B, H, L, D] where each row sees all of its picture; None = this is torch's."""
        scale = options.pop("scale", None)
        if not _sees_all((query, key, value), options):
            return None
        pictures, num_heads, length, size = query.shape
        call = AttentionCall(layer_idx=0, scale=1 / math.sqrt(size) if scale is None else scale)
        queries, keys, values = (_rows(part) for part in (query, key, value))
        longest = self._most.attention // (4 * num_heads * length * size)
        mixed = [
            plan_of_all(self._kernels, length, begin, end).attend(
                call, of_one[begin:end], LayerCache(its_keys, its_values)
            )
            for of_one, its_keys, its_values in zip(queries, keys, values, strict=True)
            for begin, end in _stretches(length, longest)
        ]
        return torch.cat(mixed)[..., :size].reshape(pictures, length, num_heads, size).transpose(1, 2)


_WAYS: Mapping[Any, Callable[..., torch.Tensor | None]] = {
    functional.linear: NativeWay.linear,
    functional.layer_norm: NativeWay.layer_norm,
    torch._grouped_mm: NativeWay.grouped_mm,  # noqa: SLF001  # what experts call
    functional.gelu: NativeWay.gelu,
    functional.silu: NativeWay.silu,
    functional.scaled_dot_product_attention: NativeWay.attend,
    torch.Tensor.add: NativeWay.add,
    torch.Tensor.__add__: NativeWay.add,
    torch.add: NativeWay.add,
}


def _is_ours(rows: torch.Tensor, *others: torch.Tensor | None) -> bool:
    parts = [rows, *(part for part in others if part is not None)]
    return rows.numel() > 0 and all(part.dtype == torch.bfloat16 and part.device.type == "cpu" for part in parts)


def _sees_all(parts: tuple[torch.Tensor, ...], options: Mapping[str, Any]) -> bool:
    first = parts[0]
    is_plain = not any(isinstance(value, torch.Tensor) or value for value in options.values())
    is_whole = all(part.shape == first.shape and _is_ours(part) for part in parts)
    return is_plain and is_whole and first.dim() == 4 and first.shape[-1] <= abi.MAX_HEAD_SIZE - _WHOLE


def _stretches(count: int, longest: int) -> Iterator[tuple[int, int]]:
    """Yield [0, count) in equal parts, none longer, but for one row at least."""
    num_parts = math.ceil(count / max(1, longest))
    for number in range(num_parts):
        yield number * count // num_parts, (number + 1) * count // num_parts


def _rows(part: torch.Tensor) -> torch.Tensor:
    """Return [B, H, L, D] as dense rows [B, L, H, whole D]."""
    missing = -part.shape[-1] % _WHOLE
    by_place = part.transpose(1, 2)
    return (functional.pad(by_place, (0, missing)) if missing else by_place).contiguous()


def kernels_for(attention: str, device: torch.device, dtype: torch.dtype, cpuinfo: Path = CPUINFO) -> Kernels | None:
    """Return the kernels of this way; None = torch computes.

    `attention` is a backend's name, or `auto`: whoever wants torch's attention wants torch's maps.
    """
    if device.type != "cpu" or dtype != torch.bfloat16 or attention not in (AUTO, NATIVE):
        return None
    kernels = load_kernels()
    if isinstance(kernels, Missing) or not kernels.multiplies_bfloat16 or multiply_tiles(cpuinfo):
        return None
    return kernels


def on_torchs_threads(kernels: Kernels | None) -> Kernels | None:
    """Have kernels that are to compute do so on as many threads as torch has, and return them."""
    if kernels is not None:
        kernels.set_num_threads(torch.get_num_threads())
    return kernels
