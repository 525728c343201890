"""Paged attention one token at a time: slow, and short enough to be read beside the formula.

For the row of a token at position p, with the keys K and values V of the positions that it sees:
softmax(scale · q Kᵀ) V. A window lets it see the last `window` positions only, a soft-cap bounds the scores, and a
sink takes a share of the weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from dormouse_worker.model.attention.interface import AttentionMetadata, BackendSizes, EagerBackend
from dormouse_worker.model.context import AttentionCall
from dormouse_worker.model.kv_cache import LayerCache


@dataclass(frozen=True, slots=True)
class NaivePlan:
    """One forward pass: for each row its position, and where the positions of its sequence lie in the pools."""

    own_slots: torch.Tensor  # [T], where the rows' own keys and values are stored
    positions: list[int]  # [T]
    slots: list[torch.Tensor]  # [T], each [context length]
    first_positions: list[int]  # [T], of the first slot

    def write(self, layer: LayerCache, key: torch.Tensor, value: torch.Tensor) -> None:
        """See `AttentionPlan`."""
        layer.write(self.own_slots, key, value)

    def attend(self, call: AttentionCall, query: torch.Tensor, layer: LayerCache) -> torch.Tensor:
        """See `AttentionPlan`."""
        rows = [
            _attend_row(call, query[row], layer, slots[: position + 1 - first], position - first)
            for row, (position, slots, first) in enumerate(
                zip(self.positions, self.slots, self.first_positions, strict=True)
            )
        ]
        return torch.stack(rows)


def _attend_row(
    call: AttentionCall, query: torch.Tensor, layer: LayerCache, slots: torch.Tensor, last: int
) -> torch.Tensor:
    """Attend from one token [Hq, D] to the slots [0, last]; return [Hq, Dv]."""
    seen = slots[max(0, last + 1 - call.window) :] if call.window else slots
    groups = query.shape[0] // layer.key.shape[1]
    keys = layer.key[seen].repeat_interleave(groups, dim=1)  # [L, Hq, D]
    values = layer.value[seen].repeat_interleave(groups, dim=1)
    scores = torch.einsum("hd,lhd->hl", query, keys) * call.scale
    if call.soft_cap is not None:
        scores = torch.tanh(scores / call.soft_cap) * call.soft_cap
    if call.sinks is not None:
        scores = torch.cat([scores, call.sinks[:, None].to(scores.dtype)], dim=1)
    weights = scores.softmax(-1)[:, : len(seen)]
    return torch.einsum("hl,lhd->hd", weights, values)


class NaiveBackend(EagerBackend):
    """Implements `AttentionBackend`; found by the entry point in pyproject.toml."""

    name = "naive"

    def __init__(self, sizes: BackendSizes) -> None:
        """Nothing is allocated ahead, whatever the largest pass."""

    def plan(self, metadata: AttentionMetadata, device: torch.device) -> NaivePlan:
        """See `AttentionBackend`."""
        slots, first_positions = [], []
        for sequence, num_rows in enumerate(metadata.query_lens):
            first = int(metadata.first_positions[sequence])
            positions = np.arange(first, metadata.context_lens[sequence])
            own = torch.as_tensor(metadata.slots(np.array([sequence]), positions[None])[0], device=device)
            slots += [own] * int(num_rows)
            first_positions += [first] * int(num_rows)
        own_slots = torch.as_tensor(metadata.slot_mapping, device=device)
        return NaivePlan(own_slots, metadata.positions.tolist(), slots, first_positions)
