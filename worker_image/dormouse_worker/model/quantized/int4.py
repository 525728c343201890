"""Weights of 4 bits: numbers of 8 bits, of which each group of inputs has 16. The formula that all agree on.

weight [out, chunks · 66]  uint8; a chunk is 128 inputs: byte i has input i (its low half) and input 64 + i, each 0 to 7
                           for a level and 8 for a minus; then the sizes, 0 to 127, of both groups of 64
scale  [out]               float32: what a number of one stands for

A group's levels are its size times those that suit a normal distribution (Lloyd, Max), for a rotation leaves nearly one
(see `rotation`), rounded to whole numbers: products are those of 8 bits. Its size is what leaves the least error.
"""

from __future__ import annotations

from functools import cache

import torch

from dormouse_worker.model.parallel.shards import Spans
from dormouse_worker.model.quantized.blocks import CHUNK, CHUNK_BYTES, GROUP, MOST, ZERO, block_size_of
from dormouse_worker.model.quantized.rotation import mix

NORMAL = (6, 18, 31, 44, 58, 75, 96, 127)  # of 127
FINE = 64  # parts of a number's unit that errors are measured in
TRIALS = range(10, 22)  # sizes that are tried, in sixteenths of what reaches the largest of a group
_NEXT_TO_NOTHING = 1e-30  # rows that are less are zeros


def quantize_in_torch(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return chunks uint8 [n, bytes] and scales float32 [n] of finite rows [n, in]; each depends on its row alone.

    Our kernels find the same, in a hundredth of the time.
    """
    mixed, block = mix(rows), block_size_of(rows.shape[1])
    peaks = mixed.abs().amax(1)
    is_zero = peaks < _NEXT_TO_NOTHING
    inverse = torch.where(is_zero, 0.0, MOST * FINE / peaks)
    groups = _in_groups((mixed * inverse[:, None]).round().int())  # whole numbers from here on: errors are exact
    sizes = _sizes_of(groups.abs())
    nibbles = _nearest(groups.abs(), sizes) + 8 * (groups < 0)
    return _pack(nibbles, sizes), torch.where(is_zero, 0.0, peaks / MOST / block**0.5)


def expand(weight: torch.Tensor, scale: torch.Tensor, columns: int) -> torch.Tensor:
    """Return the rotated weight float32 [n, columns], on any device."""
    nibbles, sizes = (part.int() for part in _unpack(weight))
    numbers = _numbers_on(weight.device)[nibbles + 16 * sizes[..., None]].flatten(1)[:, :columns]
    return numbers.float().sub_(ZERO).mul_(scale[:, None])


def take_columns(weight: torch.Tensor, spans: Spans) -> torch.Tensor:
    """Return chunks uint8 [n, bytes] of some whole groups of columns; the last one is filled up with zeros."""
    wanted = torch.cat([torch.arange(start // GROUP, stop // GROUP) for start, stop in spans])
    parts = (part.flatten(1, 2)[:, wanted] for part in _unpack(weight))
    nibbles, sizes = (_even(part).view(len(part), -1, 2, *part.shape[2:]) for part in parts)
    return _pack(nibbles, sizes)


def _levels() -> torch.Tensor:
    """Return the levels int32 [128, 8] of each size."""
    sizes, normal = torch.arange(MOST + 1, dtype=torch.int32)[:, None], torch.tensor(NORMAL, dtype=torch.int32)
    return (2 * sizes * normal + MOST) // (2 * MOST)


LEVELS = _levels()
NUMBERS = torch.cat((ZERO + LEVELS, ZERO - LEVELS), 1)  # [128, 16] by size and nibble


@cache
def _numbers_on(device: torch.device) -> torch.Tensor:
    """Return NUMBERS, flat, on a device; copied once: a pass waits for nothing, and can be recorded as a graph."""
    return NUMBERS.flatten().to(device)


def _pack(nibbles: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """Return chunks uint8 [n, bytes] of nibbles [n, chunks, 2, 64] and sizes [n, chunks, 2]."""
    both = (nibbles[:, :, 0] + 16 * nibbles[:, :, 1]).to(torch.uint8)
    return torch.cat((both, sizes.to(torch.uint8)), 2).flatten(1)


def _unpack(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return nibbles uint8 [n, chunks, 2, 64] and sizes uint8 [n, chunks, 2]."""
    chunks = weight.view(len(weight), -1, CHUNK_BYTES)
    both = chunks[..., :GROUP]
    return torch.stack((both & 15, both >> 4), 2), chunks[..., GROUP:]


def _even(groups: torch.Tensor) -> torch.Tensor:
    """Return [n, groups, ...] with an empty group behind it where their number is odd."""
    empty = groups.new_zeros(len(groups), groups.shape[1] % 2, *groups.shape[2:])
    return torch.cat((groups, empty), 1)


def _in_groups(numbers: torch.Tensor) -> torch.Tensor:
    """Return [n, chunks, 2, 64] of [n, in], filled up with zeros."""
    filled = torch.nn.functional.pad(numbers, (0, -numbers.shape[1] % CHUNK))
    return filled.view(len(numbers), -1, 2, GROUP)


def _nearest(absolute: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """Return which level, 0 to 7, is the nearest to each number; the lower one of two."""
    levels = FINE * LEVELS.to(sizes.device)[sizes]
    bounds = (levels[..., 1:] + levels[..., :-1]) // 2
    return (absolute[..., None] > bounds[..., None, :]).sum(-1, dtype=torch.int32)


def _sizes_of(absolute: torch.Tensor) -> torch.Tensor:
    """Return the size int32 [n, chunks, 2] of each group whose levels leave the least sum of squares."""
    reaching = (absolute.amax(-1) + FINE - 1) // FINE
    sizes, least = torch.zeros_like(reaching), torch.full(reaching.shape, 1 << 62, device=absolute.device)
    for trial in TRIALS:
        tried = ((reaching * trial + 8) // 16).clamp(1, MOST)
        levels = FINE * LEVELS.to(tried.device)[tried]
        rest = absolute - levels.gather(-1, _nearest(absolute, tried).long())
        error = rest.long().square().sum(-1)
        is_better = (error < least) & (reaching > 0)
        sizes, least = torch.where(is_better, tried, sizes), torch.where(is_better, error, least)
    return sizes
