"""What the blocks of GGUF's types stand for: bytes become float32, bit by bit what llama.cpp and gguf-py make. Pure.

A block is some neighbouring numbers of a row with the scales that they share. All arithmetic is float32, in one order:
first what a group's scale is, then its product with whole numbers, then what is added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from dormouse_worker.files.gguf.types import BLOCKS, PLAIN
from dormouse_worker.model.quantized.grouped import Grouped

_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def plain_rows(kind: str, raw: torch.Tensor) -> torch.Tensor:
    """Return float32 [n, columns] of rows uint8 [n, bytes] of a type."""
    if kind in PLAIN:
        return raw.contiguous().view(_FLOATS[kind]).float()
    blocks = raw.reshape(-1, BLOCKS[kind][1])
    return _MADE[kind](blocks).reshape(len(raw), -1)


def grouped_rows(kind: str, raw: torch.Tensor) -> Grouped:
    """Return what rows uint8 [n, bytes] of a type that `gguf_plan` keeps are made of: numbers of 4 or 8 bits."""
    blocks = raw.reshape(-1, BLOCKS[kind][1])
    zeros = lows = None
    if kind in _SIGNED:
        numbers, scales = _SIGNED[kind](blocks)
    elif kind in _SUPER:
        numbers, (scales, less) = _SUPER[kind](blocks), _group_scales(blocks)
        lows = -less
    elif kind in _LOWERED:
        numbers, scales, lows = _LOWERED[kind](blocks), _half(blocks, 0), _half(blocks, 2)
    else:
        numbers, scales = _nibbles(blocks[:, 2:]), _half(blocks, 0)
        zeros = torch.full((len(raw), len(blocks) // len(raw)), 8, dtype=torch.int32)
    whole, by_row = numbers.reshape(len(raw), -1), scales.reshape(len(raw), -1)
    groups = torch.arange(whole.shape[1]) // (whole.shape[1] // by_row.shape[1])
    return Grouped(whole, zeros, by_row, groups, None if lows is None else lows.reshape(by_row.shape))


def _half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """Return the number of 16 bits that lies at a byte of each block, as float32 [n, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(both: torch.Tensor) -> torch.Tensor:
    """Return int32 [n, 2 · bytes] of bytes [n, bytes]: all low halves, then all high ones."""
    return torch.cat((both & 15, both >> 4), -1).int()


def _fifth_bits(words: torch.Tensor) -> torch.Tensor:
    """Return 0 or 16, int32 [n, 32], as the bits of words uint8 [n, 4] say."""
    bits = words[:, :, None] >> torch.arange(8, dtype=torch.uint8) & 1
    return bits.flatten(1).int() << 4


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]) - 8).float()


def _numbers_q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return _nibbles(blocks[:, 4:])


def _of_lowered(kind: str) -> Callable[[torch.Tensor], torch.Tensor]:
    def made(blocks: torch.Tensor) -> torch.Tensor:
        return _half(blocks, 0) * _LOWERED[kind](blocks).float() + _half(blocks, 2)

    return made


def _of_signed(kind: str) -> Callable[[torch.Tensor], torch.Tensor]:
    def made(blocks: torch.Tensor) -> torch.Tensor:
        numbers, scales = _SIGNED[kind](blocks)
        return scales[..., None] * numbers.float()

    return made


def _signed_q5_0(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return numbers with a sign, int32 [n, groups, size], and the groups' scales, float32 [n, groups]."""
    numbers = (_nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])) - 16
    return numbers[:, None], _half(blocks, 0)


def _numbers_q5_1(blocks: torch.Tensor) -> torch.Tensor:
    return _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])


def _signed_q8_0(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return blocks[:, 2:].contiguous().view(torch.int8).int()[:, None], _half(blocks, 0)


def _scales_and_lows(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two numbers of 6 bits for each of eight groups, float32 [n, 8], of bytes [n, 12].

    Four bytes have the scales of the first groups, four their lows; the last four have four bits each of the other
    groups, whose upper two stand where the first eight bytes have room.
    """
    first, low, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat((first & 63, (rest & 15) | (first >> 2 & 48)), 1)
    lows = torch.cat((low & 63, (rest >> 4) | (low >> 2 & 48)), 1)
    return scales.float(), lows.float()


def _of_super(kind: str) -> Callable[[torch.Tensor], torch.Tensor]:
    def made(blocks: torch.Tensor) -> torch.Tensor:
        scales, lows = _group_scales(blocks)
        return scales[..., None] * _SUPER[kind](blocks).float() - lows[..., None]

    return made


def _group_scales(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the eight groups of a super-block are multiplied with and what is taken away, float32 [n, 8]."""
    scales, lows = _scales_and_lows(blocks[:, 4:16])
    return _half(blocks, 0) * scales, _half(blocks, 2) * lows


def _by_pairs(both: torch.Tensor) -> torch.Tensor:
    """Return int32 [n, 8, 32] of bytes [n, 128]: 32 bytes have the numbers of two groups."""
    return _nibbles(both.view(len(both), 4, 32)).view(len(both), 8, 32)


def _numbers_q4_k(blocks: torch.Tensor) -> torch.Tensor:
    return _by_pairs(blocks[:, 16:].contiguous())


def _numbers_q5_k(blocks: torch.Tensor) -> torch.Tensor:
    fifth = blocks[:, None, 16:48] >> torch.arange(8, dtype=torch.uint8)[None, :, None] & 1
    return _by_pairs(blocks[:, 48:].contiguous()) | (fifth.int() << 4)


def _signed_q6_k(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    n = len(blocks)
    low = _nibbles(blocks[:, :128].reshape(n, 2, 64)).view(n, 8, 32)
    shifts = torch.tensor((0, 2, 4, 6), dtype=torch.uint8)[None, None, :, None]
    high = blocks[:, 128:192].reshape(n, 2, 1, 32) >> shifts & 3
    numbers = (low | (high.int().view(n, 8, 32) << 4)) - 32
    scales = _half(blocks, 208) * blocks[:, 192:208].contiguous().view(torch.int8).float()
    return numbers.view(n, 16, 16), scales


_SIGNED: Mapping[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = MappingProxyType(
    {"Q5_0": _signed_q5_0, "Q6_K": _signed_q6_k, "Q8_0": _signed_q8_0}
)
# Whole numbers without a sign, int32: of blocks with a scale and a low, and of super-blocks, [n, 8, 32].
_LOWERED = MappingProxyType({"Q4_1": _numbers_q4_1, "Q5_1": _numbers_q5_1})
_SUPER = MappingProxyType({"Q4_K": _numbers_q4_k, "Q5_K": _numbers_q5_k})
_MADE: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = MappingProxyType(
    {
        "Q4_0": _q4_0,
        **{kind: _of_lowered(kind) for kind in _LOWERED},
        **{kind: _of_super(kind) for kind in _SUPER},
        **{kind: _of_signed(kind) for kind in _SIGNED},
    }
)
