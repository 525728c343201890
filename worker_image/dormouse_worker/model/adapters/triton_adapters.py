"""Launches the kernels that add adapters to a map on a GPU. Triton is imported with the first pass that has some."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from dormouse_worker.model.adapters.rows import Lora
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.attention.triton_launch import MIN_DOT, padded
from dormouse_worker.model.to_device import to_device

ROWS = MIN_DOT  # of a tile; a batch that decodes has few of each adapter
MAX_RANKS = 64  # that a program multiplies with at once
OUTPUTS = 64
INPUT_BYTES = 128  # of a row that are read at once


class Groups(NamedTuple):
    """The rows that have adapters, on the device."""

    order: torch.Tensor  # int32 [n]: rows, slot by slot
    tiles: torch.Tensor  # int32 [m, 3]: slot, first place in `order`, number of rows


def group_rows(slots: Ints, device: torch.device) -> Groups:
    """Return the tiles of rows whose adapters lie in slots [T], -1 = none."""
    order = np.argsort(slots, kind="stable")
    order = order[slots[order] >= 0]
    used, firsts, counts = np.unique(slots[order], return_index=True, return_counts=True)
    tiles = [
        (slot, first + done, min(ROWS, count - done))
        for slot, first, count in zip(used.tolist(), firsts.tolist(), counts.tolist(), strict=True)
        for done in range(0, count, ROWS)
    ]
    whole = np.concatenate([order, np.array(tiles, dtype=np.int64).reshape(-1)]).astype(np.int32)
    on_device = to_device(whole, device)
    return Groups(on_device[: len(order)], on_device[len(order) :].view(-1, 3))


def _import_kernels() -> ModuleType:
    from dormouse_worker.model.adapters import triton_kernels
    from dormouse_worker.native import triton_stub

    triton_stub.offer()
    return triton_kernels


@dataclass(frozen=True, slots=True)
class TritonAdapters:
    """Implements `rows.Adder` for the rows of one pass."""

    groups: Groups
    widens: bool = False  # multiply in float32 whatever is stored: the interpreter knows no product of bfloat16
    kernels: Any = field(default_factory=_import_kernels, repr=False)

    def add(self, out: torch.Tensor, inputs: torch.Tensor, lora: Lora) -> None:
        """Add to a map's outputs [T, outputs] what adapters make of its inputs [T, inputs]; both have dense rows."""
        order, tiles = self.groups
        if not len(tiles):
            return
        num_parts, rank, num_inputs = lora.a[0].shape
        ranks = min(MAX_RANKS, padded(rank))
        low = inputs.new_empty(len(order), num_parts, rank, dtype=torch.float32)
        same = {"RANK": rank, "NUM_PARTS": num_parts, "ROWS": ROWS, "RANKS": ranks, "WIDENS": self.widens}
        self.kernels.shrink[len(tiles), num_parts, -(-rank // ranks)](
            low,
            inputs,
            lora.a[0],
            order,
            tiles,
            inputs.stride(0),
            _slot_stride(lora.a),
            NUM_INPUTS=num_inputs,
            INPUTS=INPUT_BYTES // inputs.element_size(),
            **same,
            num_warps=4,
        )
        for part in range(num_parts):
            start, stop = lora.starts[part], lora.starts[part + 1]
            self.kernels.expand[len(tiles), -(-(stop - start) // OUTPUTS)](
                out,
                low,
                lora.b[0],
                order,
                tiles,
                out.stride(0),
                _slot_stride(lora.b),
                lora.b[0].stride(0),
                part,
                start,
                stop - start,
                OUTPUTS=OUTPUTS,
                **same,
                num_warps=4,
            )


def _slot_stride(views: list[torch.Tensor]) -> int:
    """Return how many elements lie between the same place of two slots."""
    return int(views[1].storage_offset() - views[0].storage_offset()) if len(views) > 1 else 0
