"""The backend for processors: our own kernels read the paged cache where it lies. Knows tensors, not models."""

from __future__ import annotations

from ctypes import pointer
from functools import cached_property
from types import MappingProxyType

import numpy as np
import torch

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.attention.interface import AttentionMetadata, AttentionShape, BackendSizes, EagerBackend
from dormouse_worker.model.attention.machine import Machine
from dormouse_worker.model.context import AttentionCall
from dormouse_worker.model.kv_cache import LayerCache
from dormouse_worker.model.scratch import address_of
from dormouse_worker.native import abi
from dormouse_worker.native.library import Kernels, Missing, load_kernels

TYPES = MappingProxyType({torch.float32: abi.FLOAT32, torch.bfloat16: abi.BFLOAT16})
MAX_HEAD_SIZE = 256  # MAX_HEAD in unit.h
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

    def write(self, layer: LayerCache, key: torch.Tensor, value: torch.Tensor) -> None:
        """See `AttentionPlan`."""
        key, value = _dense(key), _dense(value)
        group = self._batch.groups.contents
        self._kernels.write(describe_attention(layer, 0, _ANY), len(key), group, _heads(key), _heads(value))

    def attend(self, call: AttentionCall, query: torch.Tensor, layer: LayerCache) -> torch.Tensor:
        """See `AttentionPlan`."""
        query = _dense(query)
        sinks = None if call.sinks is None else call.sinks.float().contiguous()
        output = query.new_empty(query.shape[0], query.shape[1], layer.value.shape[-1])
        shape = describe_attention(layer, query.shape[1], call, sinks)
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


class NativeBackend(EagerBackend):
    """Float32 and bfloat16 on processors; what it sums up is float32. A row's bits do not depend on its batch."""

    name = "native"

    def __init__(self, sizes: BackendSizes | None = None, *, kernels: Kernels | Missing | None = None) -> None:  # noqa: ARG002
        """Compute on as many threads as torch does. Raises InvalidSettings where there are no kernels."""
        found = kernels or load_kernels()
        if isinstance(found, Missing):
            raise InvalidSettings(f"attention_backend is {self.name}, which needs its kernels: {found.reason}")
        found.set_num_threads(torch.get_num_threads())
        self.kernels = found

    @staticmethod
    def supports(machine: Machine, shape: AttentionShape) -> str | None:
        """See `AttentionBackend`."""
        if machine.device_type != "cpu":
            return f"runs on processors, not on {machine.device_type} devices"
        if machine.missing_kernels is not None:
            return f"cannot be used: {machine.missing_kernels}"
        if shape.dtype not in TYPES:
            return f"reads float32 and bfloat16, not {str(shape.dtype).removeprefix('torch.')}"
        if max(shape.key_size, shape.value_size) > MAX_HEAD_SIZE:
            return f"takes head sizes up to {MAX_HEAD_SIZE}, and this is {max(shape.key_size, shape.value_size)}"
        if shape.num_heads % shape.num_kv_heads:
            return f"{shape.num_heads} query heads cannot share {shape.num_kv_heads} key heads evenly"
        return None

    def plan(self, metadata: AttentionMetadata, device: torch.device) -> NativePlan:  # noqa: ARG002
        """See `AttentionBackend`."""
        return NativePlan(self.kernels, metadata)


def _tables_of(tables: Ints) -> tuple[Ints, int]:
    """Return tables of which each row is dense, and how far apart the rows are: the kernels need not know the end."""
    row_bytes, item_bytes = tables.strides
    if item_bytes == tables.itemsize and row_bytes > 0:
        return tables, row_bytes // item_bytes
    return np.ascontiguousarray(tables), tables.shape[1]


def describe_attention(
    layer: LayerCache, num_heads: int, call: AttentionCall, sinks: torch.Tensor | None = None
) -> abi.Attention:
    """Return how the kernels are told of a layer; `sinks` are float32 and dense."""
    return abi.Attention(
        dtype=TYPES[layer.key.dtype],
        num_heads=num_heads,
        num_kv_heads=layer.key.shape[1],
        key_size=layer.key.shape[2],
        value_size=layer.value.shape[2],
        window=call.window or 0,
        scale=call.scale,
        soft_cap=call.soft_cap or 0.0,
        sinks=None if sinks is None else sinks.data_ptr(),
        keys=layer.key.data_ptr(),
        values=layer.value.data_ptr(),
    )


def _dense(rows: torch.Tensor) -> torch.Tensor:
    """Return rows [T, heads, size] whose numbers lie behind each other within a head."""
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _heads(rows: torch.Tensor) -> abi.Heads:
    return abi.Heads(rows.data_ptr(), rows.stride(0), rows.stride(1))
