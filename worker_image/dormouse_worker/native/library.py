"""Finds the library, checks that it was made of these sources, and calls it. Raises nothing where there is none."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, byref, c_char_p, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path

from dormouse_worker.native import abi
from dormouse_worker.native.build import candidates, digest


@dataclass(frozen=True, slots=True)
class Missing:
    """Why the kernels cannot be used: a clause that goes after 'because'."""

    reason: str


class Kernels:
    """One variant of the kernels. A pass runs on the threads that were set last, and no two passes at once.

    Addresses must be right: nothing is checked on the other side. The interpreter's lock is free during a call.
    """

    def __init__(self, library: ctypes.CDLL, handle: int) -> None:
        self._library = library
        self._handle = handle
        self.name: str = library.dm_name(handle).decode()

    def __repr__(self) -> str:
        return f"Kernels({self.name}, {self.num_threads} threads)"

    @property
    def multiplies_bfloat16(self) -> bool:
        """Return whether the processor does; elsewhere each number of a weight becomes float32 at first."""
        return self.name == "avx512bf16"

    @property
    def num_threads(self) -> int:
        """Return how many threads compute."""
        return int(self._library.dm_num_threads())

    def set_num_threads(self, wanted: int) -> None:
        """Compute with so many threads from now on, in all variants."""
        self._library.dm_set_num_threads(wanted)

    def workspace_bytes(self, model: abi.Model, num_tokens: int) -> int:
        """Return what a forward pass of that size needs, aligned to 64 bytes."""
        return int(self._library.dm_workspace_bytes(self._handle, byref(model), num_tokens))

    def forward(self, model: abi.Model, batch: abi.Batch) -> None:
        """Fill the batch's logits, float32 [rows, those of the rank], or hidden states, and the cache at its slots.

        Raises IndexError if a token is not in the vocabulary or the wanted rows do not ascend within the batch, where
        nothing was computed, and RuntimeError if another rank is lost: whoever sums up for the model knows why, and
        nothing that was filled counts.
        """
        row = self._library.dm_forward(self._handle, byref(model), byref(batch))
        if row == abi.UNORDERED:
            raise IndexError(f"the rows that are wanted do not ascend within the {batch.num_tokens} of the batch")
        if row >= 0:
            raise IndexError(f"the token in row {row} is not in the vocabulary of {model.vocab_size}")
        if row < -1:
            raise RuntimeError("another rank is lost")

    def attend(self, layer: abi.Attention, batch: abi.Batch, group: abi.Group, query: abi.Heads, out: int) -> None:
        """Fill `out`, of the layer's type, [T, Hq, value size]; the pools hold the pass's keys and values already."""
        self._library.dm_attend(self._handle, byref(layer), byref(batch), byref(group), byref(query), out)

    def write(
        self, layer: abi.Attention, num_tokens: int, group: abi.Group, keys: abi.Heads, values: abi.Heads
    ) -> None:
        """Store keys and values, of the layer's type, at the group's slots."""
        self._library.dm_write(self._handle, byref(layer), num_tokens, byref(group), byref(keys), byref(values))

    def multiply(
        self, dtype: int, rows: int, linear: abi.Linear, out: int, *, num_rows: int, columns: int, num_outputs: int
    ) -> None:
        """Fill `out`, float32 [rows, outputs], with float32 rows times a map of that type."""
        sizes = (num_rows, columns, num_outputs)
        self._library.dm_multiply(self._handle, dtype, rows, byref(linear), out, *sizes)

    def normalize(
        self, rows: int, more: int | None, norm: abi.LayerNorm, out: int, *, num_rows: int, columns: int
    ) -> None:
        """Fill `out`, float32 [rows, columns], with the norm of the sum of both; it may be one of them."""
        self._library.dm_normalize(self._handle, rows, more, byref(norm), num_rows, columns, out)

    def gate(self, kind: int, numbers: int, others: int | None, *, count: int) -> None:
        """Replace float32 numbers by what a gate lets through, times the others beside them if there are any.

        GELU is as it is defined, without an approximation.
        """
        self._library.dm_gate(self._handle, kind, numbers, others, count)

    def multiply_halves(
        self, rows: int, linear: abi.Linear, out: int, *, num_rows: int, columns: int, num_outputs: int
    ) -> None:
        """Fill `out`, bfloat16 [rows, outputs], with bfloat16 rows times a plain map of such; sums are float32."""
        sizes = (num_rows, columns, num_outputs)
        self._library.dm_multiply_halves(self._handle, rows, byref(linear), out, *sizes)

    def normalize_halves(self, rows: int, norm: abi.LayerNorm, out: int, *, num_rows: int, columns: int) -> None:
        """Fill `out`, bfloat16 [rows, at most 65,536 columns], with the norm of such rows; it may be the same."""
        self._library.dm_normalize_halves(self._handle, rows, byref(norm), num_rows, columns, out)

    def gate_halves(self, kind: int, numbers: int, *, count: int) -> None:
        """Replace bfloat16 numbers by what a gate lets through."""
        self._library.dm_gate_halves(self._handle, kind, numbers, count)

    def rotate(self, rows: int, positions: int, inv_freq: int, *, num_rows: int, num_heads: int, size: int) -> None:
        """Turn float32 heads [rows, heads, size] by their rows' positions, int64, times float32 [size / 2]."""
        self._library.dm_rotate(self._handle, rows, positions, inv_freq, num_rows, num_heads, size)

    def desk_bytes(self, vocab_size: int) -> int:
        """Return what choosing tokens needs for each desk, a place where one row is worked on."""
        return int(self._library.dm_desk_bytes(self._handle, vocab_size))

    def sample(self, batch: abi.Sample) -> None:
        """Set the batch's tokens, int64 [rows]."""
        self._library.dm_sample(self._handle, byref(batch))

    def checksum(self, data: int, num_bytes: int, first_block: int) -> int:
        """Return what `model.checksum` defines for bytes of the host, in [0, 2**64).

        Several threads may call it at once, also while a pass runs; none is woken for it.
        """
        return int(self._library.dm_checksum(self._handle, data, num_bytes, first_block))

    def are_finite(self, data: int, num_bytes: int, size_bytes: int, exponent: int) -> bool:
        """Return whether floating numbers of 2, 4 or 8 bytes are finite; `exponent` = the bits of their exponents.

        To be called as `checksum` may be.
        """
        return bool(self._library.dm_are_finite(self._handle, data, num_bytes, size_bytes, exponent))

    def round_rows(self, rows: int, out: int, scales: int, *, num_rows: int, columns: int) -> None:
        """Round finite float32 rows to 4 bits, as `quantized.int4` defines it. To be called as `checksum` may be."""
        self._library.dm_round_rows(self._handle, rows, num_rows, columns, out, scales)

    def shared_bytes(self, num_ranks: int) -> int:
        """Return the bytes of the memory, zeros at first, that so many ranks of a stage share."""
        return int(self._library.dm_shared_bytes(num_ranks))

    def sum_up(self, stage: abi.Stage, numbers: int, count: int) -> None:
        """Add up float32 numbers over the ranks, in place. Raises TimeoutError if a rank does not come, or ended."""
        _require_all(self._library.dm_sum_up(byref(stage), numbers, count))

    def gather(self, stage: abi.Stage, part: int, num_rows: int, columns: int, out: int) -> None:
        """Fill the first rank's `out`, float32 [rows, ranks · columns], with all parts [rows, columns] side by side.

        `out` of the others is not looked at. Raises TimeoutError if a rank does not come, or ended.
        """
        _require_all(self._library.dm_gather(byref(stage), part, num_rows, columns, out))


def _require_all(met: int) -> None:
    if met:
        raise TimeoutError("a rank did not come in time" if met == abi.LATE else "a rank's process has ended")


def load_kernels() -> Kernels | Missing:
    """Return the fastest variant for this processor."""
    variants = load_variants()
    return variants if isinstance(variants, Missing) else variants[0]


@functools.cache
def load_variants() -> tuple[Kernels, ...] | Missing:
    """Return all variants that this processor runs, the fastest first; never none."""
    path = next((path for path in candidates() if path.is_file()), None)
    return Missing("the kernels were not compiled for this worker") if path is None else open_library(path)


def open_library(path: Path, wanted: str | None = None) -> tuple[Kernels, ...] | Missing:
    """Return what a library has, unless it was made of other sources than those of this digest; None = these."""
    wanted = wanted or digest()
    try:
        library = _declare(ctypes.CDLL(str(path)))
    except (OSError, AttributeError) as error:
        return Missing(f"the kernels cannot be loaded: {error}")
    made_of = library.dm_digest().decode()
    if library.dm_version() != abi.VERSION or made_of != wanted:
        return Missing(f"{path} was compiled from other sources ({made_of}, not {wanted})")
    handles = takewhile(bool, (library.dm_variant(number) for number in count()))
    return tuple(Kernels(library, handle) for handle in handles)


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Tell ctypes what goes in and out. Raises AttributeError if something is not there."""
    model, batch, layer, group = (POINTER(kind) for kind in (abi.Model, abi.Batch, abi.Attention, abi.Group))
    heads, linear = POINTER(abi.Heads), POINTER(abi.Linear)
    sizes, sample, stage = [c_int64] * 3, POINTER(abi.Sample), POINTER(abi.Stage)
    functions = {
        "dm_version": (c_int64, []),
        "dm_digest": (c_char_p, []),
        "dm_variant": (c_void_p, [c_int64]),
        "dm_name": (c_char_p, [c_void_p]),
        "dm_num_threads": (c_int64, []),
        "dm_set_num_threads": (None, [c_int64]),
        "dm_workspace_bytes": (c_int64, [c_void_p, model, c_int64]),
        "dm_forward": (c_int64, [c_void_p, model, batch]),
        "dm_attend": (None, [c_void_p, layer, batch, group, heads, c_void_p]),
        "dm_write": (None, [c_void_p, layer, c_int64, group, heads, heads]),
        "dm_multiply": (None, [c_void_p, c_int64, c_void_p, linear, c_void_p, *sizes]),
        "dm_normalize": (None, [c_void_p, c_void_p, c_void_p, POINTER(abi.LayerNorm), c_int64, c_int64, c_void_p]),
        "dm_gate": (None, [c_void_p, c_int64, c_void_p, c_void_p, c_int64]),
        "dm_multiply_halves": (None, [c_void_p, c_void_p, linear, c_void_p, *sizes]),
        "dm_normalize_halves": (None, [c_void_p, c_void_p, POINTER(abi.LayerNorm), c_int64, c_int64, c_void_p]),
        "dm_gate_halves": (None, [c_void_p, c_int64, c_void_p, c_int64]),
        "dm_rotate": (None, [c_void_p, *[c_void_p] * 3, *sizes]),
        "dm_desk_bytes": (c_int64, [c_void_p, c_int64]),
        "dm_sample": (None, [c_void_p, sample]),
        "dm_checksum": (c_uint64, [c_void_p, c_void_p, c_int64, c_int64]),
        "dm_are_finite": (c_int64, [c_void_p, c_void_p, c_int64, c_int64, c_uint64]),
        "dm_round_rows": (None, [c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_void_p]),
        "dm_shared_bytes": (c_int64, [c_int64]),
        "dm_sum_up": (c_int64, [stage, c_void_p, c_int64]),
        "dm_gather": (c_int64, [stage, c_void_p, c_int64, c_int64, c_void_p]),
    }
    for name, (result, arguments) in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
