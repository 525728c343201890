"""A pass over the paged cache as our kernels read it. Knows tensors and arrays, not models; imports no torch."""

from __future__ import annotations

from ctypes import pointer
from functools import cached_property
from types import MappingProxyType

import numpy as np

from dormouse_worker.common.settings import AUTO
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.attention.interface import AttentionMetadata
from dormouse_worker.model.cache_rows import FP8, INT8
from dormouse_worker.model.context import AttentionCall
from dormouse_worker.model.kv_cache import LayerCache
from dormouse_worker.model.scratch import address_of
from dormouse_worker.model.tensors import Dtype, Tensor, name_of, pointer_to
from dormouse_worker.native import abi
from dormouse_worker.native.library import Kernels

TYPES = MappingProxyType({"float32": abi.FLOAT32, "bfloat16": abi.BFLOAT16})
STORED = MappingProxyType({AUTO: abi.AS_IT_COMES, INT8: abi.ROWS_INT8, FP8: abi.ROWS_FP8})
_ANY = AttentionCall(layer_idx=0, scale=1.0)  # a write asks for nothing


class NativePlan:
    """One forward pass over arrays that lie still as long as it lives."""

    def __init__(self, kernels: Kernels, metadata: AttentionMetadata) -> None:
        self._kernels = kernels
        self._block_size = metadata.block_size
        self._tables, self._num_columns = _tables_of(metadata.block_tables)
        self._slots = np.ascontiguousarray(metadata.slot_mapping)
        self._starts = np.ascontiguousarray(metadata.query_starts)
        self._positions = np.ascontiguousarray(metadata.positions)
        self._last_seen = None if metadata.last_seen is None else np.ascontiguousarray(metadata.last_seen)

    def fill_group(self, group: abi.Group) -> None:
        """Say where this layer group's tables lie."""
        group.block_tables = address_of(self._tables[0])  # the rows need not follow each other
        group.num_columns = self._num_columns
        group.slots = address_of(self._slots)

    def fill_batch(self, batch: abi.Batch) -> None:
        """Say what all layer groups of the pass have in common."""
        batch.num_seqs = len(self._starts) - 1
        batch.num_tokens = len(self._positions)
        batch.block_size = self._block_size
        batch.query_starts = address_of(self._starts)
        batch.positions = address_of(self._positions)
        batch.last_seen = None if self._last_seen is None else address_of(self._last_seen)

    def write(self, layer: LayerCache, key: Tensor, value: Tensor) -> None:
        """See `AttentionPlan`."""
        key, value = _dense(key), _dense(value)
        group = self._batch.groups.contents
        shape = describe_attention(layer, 0, _ANY, dtype=key.dtype)
        self._kernels.write(shape, len(key), group, _heads(key), _heads(value))

    def attend(self, call: AttentionCall, query: Tensor, layer: LayerCache) -> Tensor:
        """See `AttentionPlan`."""
        query = _dense(query)
        sinks = None if call.sinks is None else call.sinks.float().contiguous()
        output = query.new_empty(query.shape[0], query.shape[1], layer.sizes[1])
        shape = describe_attention(layer, query.shape[1], call, sinks, dtype=query.dtype)
        self._kernels.attend(shape, self._batch, self._batch.groups.contents, _heads(query), output.data_ptr())
        return output

    @cached_property
    def _batch(self) -> abi.Batch:
        """Return the pass as it is where each layer asks for itself: with one group, this one."""
        group = abi.Group()
        self.fill_group(group)
        batch = abi.Batch(groups=pointer(group))
        self.fill_batch(batch)
        return batch


def plan_of_all(kernels: Kernels, length: int, begin: int, end: int) -> NativePlan:
    """Return how rows [begin, end) of a sequence of that length see all of it; keys and values are one block."""
    places = np.arange(begin, end)
    return NativePlan(
        kernels,
        AttentionMetadata(
            query_starts=np.array([0, len(places)]),
            context_lens=np.array([length]),
            block_tables=np.zeros((1, 1), dtype=np.int64),
            slot_mapping=places,
            positions=places,
            block_size=length,
            last_seen=np.full(len(places), length - 1),
        ),
    )


def _tables_of(tables: Ints) -> tuple[Ints, int]:
    """Return tables of which each row is dense, and how far apart the rows are: the kernels need not know the end."""
    row_bytes, item_bytes = tables.strides
    if item_bytes == tables.itemsize and row_bytes > 0:
        return tables, row_bytes // item_bytes
    return np.ascontiguousarray(tables), tables.shape[1]


def describe_attention(
    layer: LayerCache, num_heads: int, call: AttentionCall, sinks: Tensor | None = None, *, dtype: Dtype
) -> abi.Attention:
    """Return how the kernels are told of a layer whose rows are of that type; `sinks` are float32 and dense."""
    key_size, value_size = layer.sizes
    return abi.Attention(
        dtype=TYPES[name_of(dtype)],
        num_heads=num_heads,
        num_kv_heads=layer.key.shape[1],
        key_size=key_size,
        value_size=value_size,
        window=call.window or 0,
        scale=call.scale,
        soft_cap=call.soft_cap or 0.0,
        sinks=None if sinks is None else sinks.data_ptr(),
        keys=pointer_to(layer.key),
        values=pointer_to(layer.value),
        stored=STORED[layer.stored],
    )


def _dense(rows: Tensor) -> Tensor:
    """Return rows [T, heads, size] whose numbers lie behind each other within a head."""
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _heads(rows: Tensor) -> abi.Heads:
    return abi.Heads(rows.data_ptr(), rows.stride(0), rows.stride(1))
