"""The reference backend: gathers each context from the pools and calls torch's own attention. Runs on any device.

Sequences with one new token are gathered together, padded to the longest of their group; others go one by one. Both
are cut so that a gather holds at most `gather_tokens` tokens (or one sequence) and a score matrix at most
`score_elements`, which bounds the working memory whatever the batch looks like.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.attention.interface import AttentionMetadata, BackendSizes, EagerBackend
from dormouse_worker.model.context import AttentionCall
from dormouse_worker.model.kv_cache import LayerCache
from dormouse_worker.model.to_device import to_device

GATHER_TOKENS = 1 << 14
SCORE_ELEMENTS = 1 << 24


@dataclass(slots=True)
class _Masks:
    """Which key each query may see, by window. Positions are absolute: queries [..., Q, 1], keys [..., 1, L]."""

    query_positions: torch.Tensor
    key_positions: torch.Tensor
    last_seen: torch.Tensor | None = None  # of each query; None = its own position
    by_window: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def get(self, window: int | None) -> torch.Tensor:
        if window not in self.by_window:
            mask = self.key_positions <= (self.query_positions if self.last_seen is None else self.last_seen)
            if window is not None:
                mask = mask & (self.key_positions > self.query_positions - window)
            self.by_window[window] = mask
        return self.by_window[window]


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """B sequences with one row each, padded to L tokens."""

    rows: torch.Tensor  # [B] rows of the packed input
    slots: torch.Tensor  # [B, L]; padding repeats the sequence's own last slot, so nobody reads another's values
    masks: _Masks  # [B, 1, 1, L]
    window: int | None  # of the layer group
    is_open: bool  # under the group's window every query sees every key: no mask is needed

    def attend(self, call: AttentionCall, query: torch.Tensor, layer: LayerCache, output: torch.Tensor) -> None:
        key, value = (part.transpose(1, 2) for part in layer.read(self.slots, query.dtype))
        num_rows, num_kv_heads = key.shape[:2]
        grouped = query[self.rows].view(num_rows, num_kv_heads, -1, query.shape[-1])  # the G heads of a key head
        needs_mask = not self.is_open or call.window != self.window
        mask = self.masks.get(call.window) if needs_mask else None
        attended = _attend(call, grouped, key, value, mask)
        output[self.rows] = attended.reshape(num_rows, query.shape[1], -1)


@dataclass(frozen=True, slots=True)
class _Prefill:
    """One sequence with the rows [start, end)."""

    start: int
    end: int
    slots: torch.Tensor  # [L]
    masks: _Masks  # [Q, L]
    score_elements: int

    def attend(self, call: AttentionCall, query: torch.Tensor, layer: LayerCache, output: torch.Tensor) -> None:
        key, value = (part.transpose(1, 2) for part in layer.read(self.slots[None], query.dtype))
        mask = self.masks.get(call.window)
        step = max(1, self.score_elements // (len(self.slots) * query.shape[1]))
        for first in range(self.start, self.end, step):
            last = min(self.end, first + step)
            rows = mask[first - self.start : last - self.start]
            output[first:last] = _attend_rows(call, query[first:last], key, value, rows)


def _attend_rows(
    call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Attend from query [Q, Hq, D] to key [1, Hkv, L, D]; the G heads of a key head become G · Q rows of it."""
    num_rows, num_heads, size = query.shape
    num_kv_heads = key.shape[1]
    groups = num_heads // num_kv_heads
    grouped = query.view(num_rows, num_kv_heads, groups, size).permute(1, 2, 0, 3)
    grouped = grouped.reshape(1, num_kv_heads, groups * num_rows, size)
    attended = _attend(call, grouped, key, value, mask.repeat(groups, 1)[None, None])
    attended = attended.view(num_kv_heads, groups, num_rows, -1).permute(2, 0, 1, 3)
    return attended.reshape(num_rows, num_heads, -1)


def _attend(
    call: AttentionCall, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Attend from [B, Hkv, R, D] to [B, Hkv, L, D] under the mask, None = all; R = whole groups of heads, by head."""
    if call.soft_cap is None and call.sinks is None:
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=call.scale)
    scores = query @ key.transpose(-1, -2) * call.scale
    if call.soft_cap is not None:
        scores = torch.tanh(scores / call.soft_cap) * call.soft_cap
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if call.sinks is None:
        return scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value
    num_kv_heads, num_rows = query.shape[1:3]
    sinks = call.sinks.view(num_kv_heads, -1).to(scores.dtype)
    sinks = sinks.repeat_interleave(num_rows // sinks.shape[1], dim=1)[None, :, :, None].expand(len(query), -1, -1, -1)
    weights = torch.cat([scores, sinks], dim=-1).softmax(-1, dtype=torch.float32)[..., :-1]
    return weights.to(value.dtype) @ value


@dataclass(frozen=True, slots=True)
class SdpaPlan:
    """The parts of one forward pass."""

    parts: tuple[_DecodeGroup | _Prefill, ...]
    slots: torch.Tensor  # [T]

    def write(self, layer: LayerCache, key: torch.Tensor, value: torch.Tensor) -> None:
        """See `AttentionPlan`."""
        layer.write(self.slots, key, value)

    def attend(self, call: AttentionCall, query: torch.Tensor, layer: LayerCache) -> torch.Tensor:
        """See `AttentionPlan`."""
        output = query.new_empty(query.shape[0], query.shape[1], layer.sizes[1])
        for part in self.parts:
            part.attend(call, query, layer, output)
        return output


class SdpaBackend(EagerBackend):
    """The reference; every other backend is tested against it.

    No graphs: what it gathers is as long as the longest context of the pass. That is an activation, not a workspace.
    """

    name = "sdpa"
    reads_rounded = True

    def __init__(
        self,
        sizes: BackendSizes | None = None,  # noqa: ARG002  nothing is allocated ahead
        *,
        gather_tokens: int = GATHER_TOKENS,
        score_elements: int = SCORE_ELEMENTS,
    ) -> None:
        self._gather_tokens = gather_tokens
        self._score_elements = score_elements

    def plan(self, metadata: AttentionMetadata, device: torch.device) -> SdpaPlan:
        """See `AttentionBackend`."""
        lens = metadata.query_lens
        decode, prefill = np.flatnonzero(lens == 1), np.flatnonzero(lens > 1)
        visible = metadata.context_lens - metadata.first_positions
        return SdpaPlan(
            (
                *(_decode_group(metadata, group, device) for group in _cut(decode, visible, self._gather_tokens)),
                *(_prefill(metadata, int(i), self._score_elements, device) for i in prefill),
            ),
            to_device(metadata.slot_mapping, device),
        )


def _cut(sequences: Ints, visible: Ints, gather_tokens: int) -> list[Ints]:
    """Sort by what they see and cut into groups whose padded size stays within `gather_tokens`."""
    groups: list[Ints] = []
    rest = sequences[np.argsort(-visible[sequences], kind="stable")]
    while len(rest):
        count = max(1, gather_tokens // int(visible[rest[0]]))
        groups.append(rest[:count])
        rest = rest[count:]
    return groups


def _decode_group(metadata: AttentionMetadata, sequences: Ints, device: torch.device) -> _DecodeGroup:
    """Describe decoding sequences; each one's keys begin at the edge of the first block that it sees."""
    size = metadata.block_size
    last = metadata.context_lens[sequences, None] - 1
    first = metadata.first_positions[sequences, None]
    first_column, last_column = first // size, last // size
    num_keys = int((last - first_column * size).max()) + 1
    columns = np.minimum(first_column + np.arange(-(-num_keys // size)), last_column)
    blocks = metadata.block_tables[sequences[:, None], columns]
    slots = (blocks[:, :, None] * size + np.arange(size)).reshape(len(sequences), -1)[:, :num_keys]
    positions = first_column * size + np.arange(num_keys)
    is_own = positions <= last
    slots = np.where(is_own, slots, metadata.slots(sequences, last))
    is_open = bool((is_own & (positions >= first)).all())
    masks = _Masks(
        to_device(last, device)[:, None, None, :],
        to_device(positions, device)[:, None, None, :],
    )
    rows = to_device(metadata.query_starts[sequences], device)
    return _DecodeGroup(rows, to_device(slots, device), masks, metadata.window, is_open)


def _prefill(metadata: AttentionMetadata, sequence: int, score_elements: int, device: torch.device) -> _Prefill:
    start, end = (int(row) for row in metadata.query_starts[sequence : sequence + 2])
    positions = np.arange(metadata.first_positions[sequence], metadata.context_lens[sequence])
    slots = metadata.slots(np.array([sequence]), positions[None])[0]
    queries = to_device(metadata.positions[start:end], device)
    last_seen = metadata.last_seen
    limits = None if last_seen is None else to_device(last_seen[start:end], device)[:, None]
    masks = _Masks(queries[:, None], to_device(positions, device)[None, :], limits)
    return _Prefill(start, end, to_device(slots, device), masks, score_elements)
