"""Weights of 4 bits as other tools round them: groups of inputs, each with a scale and a zero of its own. Pure.

weight [out, chunks · bytes]  uint8; a chunk is 128 inputs: byte i has input i (its low half) and input 64 + i; then the
                              scales, float32, and zeros of its groups, 1 or 4 of them (filled up to four bytes)

What they stand for is what is computed with: the very plain weights that a checkpoint's reader makes of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dormouse_worker.model.parallel.shards import Spans

HALF, CHUNK, ZERO_BYTES = 64, 128, 4
MOST = 15


@dataclass(frozen=True, slots=True)
class Grouped:
    """Some rows of a map: what is to be taken from numbers, and what they are multiplied with, group by group."""

    numbers: torch.Tensor  # int32 [n, in]
    zeros: torch.Tensor  # int32 [n, groups]
    scales: torch.Tensor  # float32 [n, groups]
    groups: torch.Tensor  # [in] the group of each input

    def plain(self) -> torch.Tensor:
        """Return the weights float32 [n, in]."""
        return (self.numbers - self.zeros[:, self.groups]).float() * self.scales[:, self.groups]


def groups_in_chunk(group_size: int, columns: int) -> int | None:
    """Return how many groups a chunk has, for groups of inputs in their order (-1 = all); None = they do not fit."""
    if columns % CHUNK:
        return None
    if group_size == -1 or group_size % CHUNK == 0:
        return 1
    return 4 if group_size in (32, 64) else None


def row_bytes(columns: int, count: int) -> int:
    """Return the bytes of a row of so many inputs, where a chunk has so many groups."""
    return columns // CHUNK * _chunk_bytes(count)


def pack(rows: Grouped, count: int) -> torch.Tensor:
    """Return chunks uint8 [n, bytes] of numbers of 4 bits, where a chunk has so many groups."""
    halves = rows.numbers.to(torch.uint8).reshape(len(rows.numbers), -1, 2, HALF)
    first = rows.groups[:: CHUNK // count]
    scales, zeros = (part[:, first].view(len(part), -1, count) for part in (rows.scales, rows.zeros))
    scale_bytes = scales.float().contiguous().view(torch.uint8)
    zero_bytes = torch.nn.functional.pad(zeros.to(torch.uint8), (0, ZERO_BYTES - count))
    return torch.cat((halves[:, :, 0] | (halves[:, :, 1] << 4), scale_bytes, zero_bytes), 2).flatten(1)


def expand(weight: torch.Tensor, columns: int, count: int) -> torch.Tensor:
    """Return the plain weight float32 [n, columns], on any device."""
    chunks = weight.view(len(weight), -1, _chunk_bytes(count))
    both, scales = chunks[..., :HALF], chunks[..., HALF:-ZERO_BYTES].contiguous().view(torch.float32)
    zeros = chunks[..., -ZERO_BYTES:][..., :count].int()
    numbers = torch.cat((both & MOST, both >> 4), 2).int().view(*chunks.shape[:2], count, -1)
    plain = (numbers - zeros[..., None]).float() * scales[..., None]
    assert plain.shape[1] * CHUNK == columns
    return plain.flatten(1)


def take_columns(weight: torch.Tensor, spans: Spans, count: int) -> torch.Tensor:
    """Return chunks uint8 [n, bytes] of some columns, whole chunks of them."""
    chunks = weight.view(len(weight), -1, _chunk_bytes(count))
    return torch.cat([chunks[:, start // CHUNK : stop // CHUNK] for start, stop in spans], 1).flatten(1)


def _chunk_bytes(count: int) -> int:
    return HALF + count * torch.float32.itemsize + ZERO_BYTES
