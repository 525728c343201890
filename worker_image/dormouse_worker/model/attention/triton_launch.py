"""Chooses what is compiled into our kernels for a layer, and launches them. Waits for nothing on the device.

Triton is imported with the first launcher, so that a machine without it can still ask what it supports.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

import torch

from dormouse_worker.model.cache_rows import FP8, mixed_size
from dormouse_worker.model.context import AttentionCall
from dormouse_worker.model.kv_cache import LayerCache

NO_WINDOW = 1 << 30
MIN_DOT = 16  # tensor cores multiply matrices of at least this side
KEY_TILE_BYTES = 1 << 14  # of one step's keys; twice that for both, times the stages, must fit into shared memory
NUM_STAGES = 2


class Work(NamedTuple):
    """What there is to compute, on the device."""

    tiles: torch.Tensor  # int32 [n, 4], see `attend_tiles`
    tables: torch.Tensor  # int32 [N, B]


class Scratch(NamedTuple):
    """Where splits leave what they found, float32."""

    parts: torch.Tensor  # [at least n · Hq · splits · Dv]
    totals: torch.Tensor  # [at least n · Hq · splits]
    num_splits: int


@dataclass(frozen=True, slots=True)
class Splitting:
    """How the keys of a decoding sequence are divided; by its own length, never by its neighbours'."""

    max_splits: int
    min_tokens: int  # a multiple of what one step reads

    def count(self, context_len: int) -> int:
        """Return how many splits a context of that many tokens needs at most; at least 1."""
        return max(1, min(self.max_splits, -(-context_len // self.min_tokens)))


def _import_kernels() -> ModuleType:
    from dormouse_worker.model.attention import triton_kernels
    from dormouse_worker.native import triton_stub

    triton_stub.offer()
    return triton_kernels


@dataclass(frozen=True, slots=True)
class Launcher:
    """The kernels with what all layers share."""

    block_size: int
    queries_per_tile: int
    splitting: Splitting
    widens: bool = False  # multiply in float32 whatever is stored: the interpreter knows no product of bfloat16
    kernels: Any = field(default_factory=_import_kernels, repr=False)

    def write(self, layer: LayerCache, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store key [T, Hkv, D] and value [T, Hkv, Dv] at slots [T], -1 = nowhere."""
        key, value = _with_dense_heads(key), _with_dense_heads(value)
        self.kernels.write_cache[len(slots), key.shape[1]](
            key,
            value,
            slots,
            layer.key,
            layer.value,
            *key.stride()[:2],
            *value.stride()[:2],
            NUM_HEADS=key.shape[1],
            **_row_constants(layer),
            num_warps=1,
        )

    def prefill(
        self,
        call: AttentionCall,
        query: torch.Tensor,
        layer: LayerCache,
        work: Work,
        output: torch.Tensor,
    ) -> None:
        """Attend with tiles of several queries."""
        self._attend(call, query, layer, work, None, output)

    def decode(
        self,
        call: AttentionCall,
        query: torch.Tensor,
        layer: LayerCache,
        work: Work,
        scratch: Scratch,
        output: torch.Tensor,
    ) -> None:
        """Attend with tiles of one query, each divided into splits, and join them."""
        self._attend(call, query, layer, work, scratch, output)
        value_size = layer.sizes[1]
        self.kernels.join_splits[len(work.tiles), query.shape[1]](
            output,
            scratch.parts,
            scratch.totals,
            work.tiles,
            scratch.num_splits,
            VALUE_SIZE=value_size,
            VALUE_PAD=padded(value_size),
            SPLITS_PAD=power_of_two(self.splitting.max_splits),
            num_warps=4,
        )

    def _attend(
        self,
        call: AttentionCall,
        query: torch.Tensor,
        layer: LayerCache,
        work: Work,
        scratch: Scratch | None,
        output: torch.Tensor,
    ) -> None:
        assert layer.key.is_contiguous(), "the kernels find a slot by its number alone"
        assert layer.value.is_contiguous()
        query = _with_dense_heads(query)
        compiled_in = self._compiled_in(call, query, layer, is_split=scratch is not None)
        num_splits = scratch.num_splits if scratch else 1
        self.kernels.attend_tiles[len(work.tiles), layer.key.shape[1], num_splits](
            scratch.parts if scratch else output,
            scratch.totals if scratch else output,
            query,
            layer.key,
            layer.value,
            query if call.sinks is None else call.sinks,
            work.tiles,
            work.tables,
            float(call.scale) * mixed_size(layer.sizes[0], layer.stored) ** -0.5,
            float(call.soft_cap or 0.0),  # an integer would be compiled in as one
            min(call.window or NO_WINDOW, NO_WINDOW),
            *query.stride()[:2],
            work.tables.stride(0),
            **compiled_in,
            num_warps=4 if compiled_in["ROWS"] <= 64 else 8,  # more rows in four would spill registers
            num_stages=NUM_STAGES,
        )

    def _compiled_in(
        self, call: AttentionCall, query: torch.Tensor, layer: LayerCache, *, is_split: bool
    ) -> dict[str, Any]:
        num_kv_heads, sizes = layer.key.shape[1], layer.sizes
        group = query.shape[1] // num_kv_heads
        queries = 1 if is_split else self.queries_per_tile
        step = choose_keys_per_step(max(sizes), query.element_size())
        return {
            "NUM_KV_HEADS": num_kv_heads,
            "GROUP": group,
            **_row_constants(layer),
            "MIX_FACTOR": mixed_size(sizes[0], layer.stored) ** -0.5,
            "BLOCK_SIZE": self.block_size,
            "ROWS": padded(queries * group),
            "KEYS": step,
            "HAS_SOFT_CAP": call.soft_cap is not None,
            "HAS_SINKS": call.sinks is not None,
            "IS_SPLIT": is_split,
            "MAX_SPLITS": self.splitting.max_splits,
            "MIN_SPLIT": self.splitting.min_tokens,
            "WIDENS": self.widens,
        }


def _row_constants(layer: LayerCache) -> dict[str, Any]:
    """Return what both kernels are told of a pool's rows."""
    key_size, value_size = layer.sizes
    return {
        "KEY_SIZE": key_size,
        "VALUE_SIZE": value_size,
        "KEY_PAD": padded(key_size),
        "VALUE_PAD": padded(value_size),
        "KEY_ROW": layer.key.shape[2],
        "VALUE_ROW": layer.value.shape[2],
        "IS_ROUNDED": layer.is_rounded,
        "IS_FLOAT": layer.stored == FP8,
        "MIX_STEPS": mixed_size(key_size, layer.stored).bit_length() - 1,
    }


def choose_keys_per_step(head_size: int, element_bytes: int) -> int:
    """Return how many keys a program reads at once, 16 … 64: a power of two that keeps a step within its memory."""
    return max(MIN_DOT, min(64, KEY_TILE_BYTES // (padded(head_size) * element_bytes)))


def _with_dense_heads(rows: torch.Tensor) -> torch.Tensor:
    """Return the rows such that each head's elements lie side by side; rows and heads may lie anywhere."""
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def padded(size: int) -> int:
    """Return the side of the matrix in which a program holds that many rows or columns."""
    return max(MIN_DOT, power_of_two(size))


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below the number."""
    return 1 << (number - 1).bit_length()
