"""Our own backend for CUDA: plans for the kernels of `triton_kernels`, and the memory that they keep.

    workspace   [ parts [S, Hq, splits, Dv] | totals [S, Hq, splits] | group 0: tiles, slots, tables | group 1 … ]

Parts and totals, in float32, serve one layer after another. The groups' ints are what a captured graph reads; eager
passes bring theirs in tensors of their own. S = the largest number of sequences in a pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from dormouse_worker.model.attention.device_copy import carve, carved_bytes, stage, upload
from dormouse_worker.model.attention.interface import (
    AttentionMetadata,
    AttentionShape,
    BackendSizes,
    GraphSupport,
)
from dormouse_worker.model.attention.machine import Machine
from dormouse_worker.model.attention.tiles import TILE_BYTES, choose_queries_per_tile, make_tiles
from dormouse_worker.model.attention.triton_launch import Launcher, Scratch, Splitting, Work, padded
from dormouse_worker.model.context import AttentionCall
from dormouse_worker.model.kv_cache import LayerCache

SPLITTING = Splitting(
    max_splits=16,  # programs per sequence and key head: eight key heads fill a hundred processors with one sequence
    min_tokens=256,  # below it joining costs more than dividing gives
)
MIN_TRITON = (3, 6)
MIN_CAPABILITY = (8, 0)  # for older devices Triton compiles no tensor cores, and a program spills kilobytes
MIN_HEAD_SIZE, MAX_HEAD_SIZE = 16, 256
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Workspace:
    """What lasts from pass to pass."""

    parts: torch.Tensor  # float32 [elements]
    totals: torch.Tensor  # float32 [elements]
    tiles: list[torch.Tensor]  # by group, int32 [S, 4]
    slots: list[torch.Tensor]  # by group, int32 [S]
    tables: list[torch.Tensor]  # by group, int32 [S, B]


@dataclass(frozen=True, slots=True)
class TritonPlan:
    """One pass; all tensors lie on the device."""

    launcher: Launcher
    workspace: Workspace
    decode: torch.Tensor  # int32 [n, 4], see `Tiles`
    prefill: torch.Tensor  # int32 [m, 4]
    slots: torch.Tensor  # int32 [T]
    tables: torch.Tensor  # int32 [N, B]
    num_splits: int

    def write(self, layer: LayerCache, key: torch.Tensor, value: torch.Tensor) -> None:
        """See `AttentionPlan`."""
        self.launcher.write(layer, self.slots, key, value)

    def attend(self, call: AttentionCall, query: torch.Tensor, layer: LayerCache) -> torch.Tensor:
        """See `AttentionPlan`."""
        output = query.new_empty(query.shape[0], query.shape[1], layer.sizes[1])
        if len(self.decode):
            scratch = Scratch(self.workspace.parts, self.workspace.totals, self.num_splits)
            self.launcher.decode(call, query, layer, Work(self.decode, self.tables), scratch, output)
        if len(self.prefill):
            self.launcher.prefill(call, query, layer, Work(self.prefill, self.tables), output)
        return output


@dataclass(frozen=True, slots=True)
class TritonGraphPlan(TritonPlan):
    """Decoding sequences in the workspace's buffers; launches depend on their number alone."""

    def refresh(self, metadata: AttentionMetadata) -> None:
        """See `GraphPlan`."""
        count, num_columns = metadata.block_tables.shape
        num_seqs = len(self.decode)
        assert count <= num_seqs, f"{count} sequences do not fit into a plan of {num_seqs}"
        assert (metadata.query_lens == 1).all(), "a graph computes one row for each sequence"
        rows = np.arange(num_seqs)
        tiles = np.stack([rows, rows, np.zeros_like(rows), np.zeros_like(rows)], axis=1)
        tiles[:count, 2], tiles[:count, 3] = metadata.context_lens - 1, 1
        slots = np.full(num_seqs, -1)
        slots[:count] = metadata.slot_mapping
        staged = stage([tiles, slots, metadata.block_tables], self.tables.device)
        buffers = (self.decode, self.slots, self.tables[:count, :num_columns])
        for buffer, values in zip(buffers, staged, strict=True):
            buffer.copy_(values, non_blocking=True)


class TritonBackend:
    """Makes plans; owns the workspace. Kernels run on the current CUDA device and stream."""

    name = "triton"
    reads_rounded = True
    graph_support = GraphSupport.DECODE

    def __init__(self, sizes: BackendSizes, splitting: Splitting = SPLITTING, *, widens: bool = False) -> None:
        """Import triton; the memory comes later. For `widens` see `Launcher`."""
        shapes = sizes.shapes
        queries = min(choose_queries_per_tile(shape.heads_per_kv_head, _query_bytes(shape)) for shape in shapes)
        self._sizes = sizes
        self._splitting = splitting
        self._launcher = Launcher(shapes[0].block_size, queries, splitting, widens)
        self._workspace: Workspace | None = None

    def __repr__(self) -> str:
        return f"TritonBackend({self.workspace_bytes()} bytes {'bound' if self._workspace else 'to bind'})"

    @staticmethod
    def supports(machine: Machine, shape: AttentionShape) -> str | None:
        """See `AttentionBackend`."""
        return unsupported_machine(machine) or _unsupported_shape(shape)

    def workspace_bytes(self) -> int:
        """See `AttentionBackend`."""
        return carved_bytes(self._workspace_shapes())

    def bind_workspace(self, workspace: torch.Tensor) -> None:
        """See `AttentionBackend`."""
        needed = self.workspace_bytes()
        assert workspace.numel() >= needed, f"{workspace.numel()} bytes are fewer than the {needed} asked for"
        shapes = self._workspace_shapes()
        dtypes = [torch.float32] * 2 + [torch.int32] * (len(shapes) - 2)
        parts, totals, *ints = carve(workspace, shapes, dtypes)
        self._workspace = Workspace(parts, totals, ints[0::3], ints[1::3], ints[2::3])

    def plan(self, metadata: AttentionMetadata, device: torch.device) -> TritonPlan:
        """See `AttentionBackend`."""
        tiles = make_tiles(metadata, self._launcher.queries_per_tile)
        assert len(tiles.decode) <= self._sizes.max_num_seqs, "more sequences than the workspace was made for"
        arrays = [tiles.decode, tiles.prefill, metadata.slot_mapping, metadata.block_tables]
        decode, prefill, slots, tables = upload(arrays, device)
        num_splits = self._splitting.count(tiles.longest_decode)
        return TritonPlan(self._launcher, self._bound(device), decode, prefill, slots, tables, num_splits)

    def graph_plan(self, group: int, num_seqs: int, device: torch.device) -> TritonGraphPlan:
        """See `GraphBackend`."""
        workspace = self._bound(device)
        tiles, slots = workspace.tiles[group][:num_seqs], workspace.slots[group][:num_seqs]
        tables = workspace.tables[group][:num_seqs]
        num_splits = self._splitting.count(self._sizes.max_model_len)
        plan = TritonGraphPlan(self._launcher, workspace, tiles, tiles[:0], slots, tables, num_splits)
        nobody = np.zeros(0, dtype=np.int64)
        columns = np.zeros((0, 0), dtype=np.int64)
        block_size = self._sizes.shapes[0].block_size
        plan.refresh(AttentionMetadata(np.zeros(1, dtype=np.int64), nobody, columns, nobody, nobody, block_size))
        return plan

    def _bound(self, device: torch.device) -> Workspace:
        if self._workspace is None:
            self.bind_workspace(torch.empty(self.workspace_bytes(), dtype=torch.uint8, device=device))
        assert self._workspace is not None
        return self._workspace

    def _workspace_shapes(self) -> list[tuple[int, ...]]:
        sizes = self._sizes
        num_splits = self._splitting.count(sizes.max_model_len)
        num_totals = sizes.max_num_seqs * num_splits * max(shape.num_heads for shape in sizes.shapes)
        num_parts = sizes.max_num_seqs * num_splits * max(s.num_heads * s.value_size for s in sizes.shapes)
        of_group = [(sizes.max_num_seqs, 4), (sizes.max_num_seqs,), (sizes.max_num_seqs, sizes.max_blocks)]
        return [(num_parts,), (num_totals,), *of_group * sizes.num_groups]


def unsupported_machine(machine: Machine) -> str | None:
    """Return why our Triton kernels do not run on a machine; None = they do."""
    if machine.device_type != "cuda":
        return f"runs on CUDA devices, not on {machine.device_type}"
    if machine.triton_version is None or machine.triton_version < MIN_TRITON:
        found = "none" if machine.triton_version is None else ".".join(map(str, machine.triton_version))
        return f"needs triton 3.6 or later, and {found} is installed"
    if machine.capability is None or machine.capability < MIN_CAPABILITY:
        found = "unknown" if machine.capability is None else ".".join(map(str, machine.capability))
        return f"needs compute capability 8.0 or higher, and the device's is {found}"
    return None


def _unsupported_shape(shape: AttentionShape) -> str | None:
    if shape.dtype not in DTYPES:
        return f"computes in float32, bfloat16 and float16, not in {str(shape.dtype).removeprefix('torch.')}"
    for what, size in (("key", shape.key_size), ("value", shape.value_size)):
        if not MIN_HEAD_SIZE <= size <= MAX_HEAD_SIZE:
            return f"{what}s of {size} elements per head are outside {MIN_HEAD_SIZE} … {MAX_HEAD_SIZE}"
    if shape.num_heads % shape.num_kv_heads:
        return f"{shape.num_heads} query heads cannot share {shape.num_kv_heads} key heads evenly"
    if shape.looks_ahead:
        return "lets no token see those behind it, as an image's do in this model"
    if padded(shape.heads_per_kv_head) * _query_bytes(shape) > TILE_BYTES:
        return (
            f"{shape.heads_per_kv_head} query heads of {shape.key_size} elements on one key head "
            f"are more than the {TILE_BYTES} bytes that a program holds"
        )
    return None


def _query_bytes(shape: AttentionShape) -> int:
    return padded(shape.key_size) * int(shape.dtype.itemsize)
