"""Weights of 4 and 8 bits as other tools round them: groups of inputs, each with a scale and a zero or a low. Pure.

weight [out, chunks · bytes]  uint8; a chunk is 128 inputs: byte i has input i (its low half) and input 64 + i; then the
                              scales, float32, and zeros of its groups, 1 or 4 of them (filled up to four bytes); or
                              the scales and lows, float32, of 4 groups
                              of 8 bits: 128 numbers with a sign, then the scales, float32, of 4 or 8 groups, or the
                              scales and lows of 4

What they stand for is what is computed with: the very plain weights that a checkpoint's reader makes of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

from dormouse_worker.model.parallel.shards import Spans

HALF, CHUNK, ZERO_BYTES = 64, 128, 4
MOST = 15


class Chunks(Enum):
    """How chunks lie, by the name of the format."""

    OF_ONE = "w4a16/128"
    OF_FOUR = "w4a16/32"
    WITH_LOWS = "w4a16/32 with lows"
    BYTES_OF_FOUR = "w8a16/32"
    BYTES_OF_EIGHT = "w8a16/16"
    BYTES_WITH_LOWS = "w8a16/32 with lows"

    @property
    def num_groups(self) -> int:
        """Return how many groups a chunk has."""
        return {Chunks.OF_ONE: 1, Chunks.BYTES_OF_EIGHT: 8}.get(self, 4)

    @property
    def is_of_bytes(self) -> bool:
        """Return whether numbers have 8 bits and a sign, and no zero."""
        return self in (Chunks.BYTES_OF_FOUR, Chunks.BYTES_OF_EIGHT, Chunks.BYTES_WITH_LOWS)

    @property
    def has_lows(self) -> bool:
        """Return whether something is added to each group."""
        return self in (Chunks.WITH_LOWS, Chunks.BYTES_WITH_LOWS)

    @property
    def num_bytes(self) -> int:
        """Return the size of a chunk."""
        scale_bytes = self.num_groups * torch.float32.itemsize
        low_bytes = scale_bytes if self.has_lows else 0
        if self.is_of_bytes:
            return CHUNK + scale_bytes + low_bytes
        return HALF + scale_bytes + (low_bytes or ZERO_BYTES)

    def row_bytes(self, columns: int) -> int:
        """Return the bytes of a row of so many inputs."""
        return columns // CHUNK * self.num_bytes


@dataclass(frozen=True, slots=True)
class Grouped:
    """Some rows of a map: what is taken from numbers, what they are multiplied with, what is added, group by group.

    Without zeros, numbers may have a sign and 8 bits.
    """

    numbers: torch.Tensor  # int32 [n, in]
    zeros: torch.Tensor | None  # int32 [n, groups]; None = lows, or neither
    scales: torch.Tensor  # float32 [n, groups]
    groups: torch.Tensor  # [in] the group of each input
    lows: torch.Tensor | None = None  # float32 [n, groups]; None = zeros, or neither

    def plain(self) -> torch.Tensor:
        """Return the weights float32 [n, in]."""
        scales = self.scales[:, self.groups]
        if self.lows is not None:
            return self.numbers.float() * scales + self.lows[:, self.groups]
        numbers = self.numbers if self.zeros is None else self.numbers - self.zeros[:, self.groups]
        return numbers.float() * scales

    @property
    def is_finite(self) -> bool:
        """Return whether all weights are finite numbers."""
        return all(bool(part.isfinite().all()) for part in (self.scales, self.lows) if part is not None)


def chunks_of(group_size: int, columns: int) -> Chunks | None:
    """Return how groups with zeros, of inputs in their order (-1 = all), lie in chunks; None = they do not fit."""
    if columns % CHUNK:
        return None
    if group_size == -1 or group_size % CHUNK == 0:
        return Chunks.OF_ONE
    return Chunks.OF_FOUR if group_size in (32, 64) else None


def pack(rows: Grouped, chunks: Chunks) -> torch.Tensor:
    """Return chunks uint8 [n, bytes] of numbers of 4 or 8 bits."""
    count = chunks.num_groups
    first = rows.groups[:: CHUNK // count]

    def by_chunk(part: torch.Tensor) -> torch.Tensor:
        return part[:, first].view(len(part), -1, count)

    if chunks.is_of_bytes:
        numbers = rows.numbers.to(torch.int8).view(torch.uint8).reshape(len(rows.numbers), -1, CHUNK)
        floats = [by_chunk(part) for part in (rows.scales, rows.lows) if part is not None]
        return torch.cat((numbers, *map(_bytes_of, floats)), 2).flatten(1)
    halves = rows.numbers.to(torch.uint8).reshape(len(rows.numbers), -1, 2, HALF)
    if rows.lows is None:
        assert rows.zeros is not None, "one of them is there"
        rest = torch.nn.functional.pad(by_chunk(rows.zeros).to(torch.uint8), (0, ZERO_BYTES - count))
    else:
        rest = _bytes_of(by_chunk(rows.lows))
    return torch.cat((halves[:, :, 0] | (halves[:, :, 1] << 4), _bytes_of(by_chunk(rows.scales)), rest), 2).flatten(1)


def expand(weight: torch.Tensor, columns: int, chunks: Chunks) -> torch.Tensor:
    """Return the plain weight float32 [n, columns], on any device."""
    count = chunks.num_groups
    lying = weight.view(len(weight), -1, chunks.num_bytes)
    if chunks.is_of_bytes:
        signed = lying[..., :CHUNK].contiguous().view(torch.int8).float().view(*lying.shape[:2], count, -1)
        scales, lows = (floats := _floats_of(lying[..., CHUNK:]))[..., :count, None], floats[..., count:, None]
        return (signed * scales + lows if chunks.has_lows else signed * scales).flatten(1)
    scale_end = HALF + count * torch.float32.itemsize
    both, scales, rest = lying[..., :HALF], _floats_of(lying[..., HALF:scale_end]), lying[..., scale_end:]
    numbers = torch.cat((both & MOST, both >> 4), 2).int().view(*lying.shape[:2], count, -1)
    if chunks.has_lows:
        plain = numbers.float() * scales[..., None] + _floats_of(rest)[..., None]
    else:
        plain = (numbers - rest[..., :count, None].int()).float() * scales[..., None]
    assert plain.shape[1] * CHUNK == columns
    return plain.flatten(1)


def take_columns(weight: torch.Tensor, spans: Spans, chunks: Chunks) -> torch.Tensor:
    """Return chunks uint8 [n, bytes] of some columns, whole chunks of them."""
    lying = weight.view(len(weight), -1, chunks.num_bytes)
    return torch.cat([lying[:, start // CHUNK : stop // CHUNK] for start, stop in spans], 1).flatten(1)


def _bytes_of(floats: torch.Tensor) -> torch.Tensor:
    return floats.float().contiguous().view(torch.uint8)


def _floats_of(lying: torch.Tensor) -> torch.Tensor:
    return lying.contiguous().view(torch.float32)
