"""How checkpoints of other tools keep quantized maps: which tensors, and the weights that they stand for. Pure.

A kind says what must lie under the name of a map of `rows` outputs and `columns` inputs, and makes plain weights of
some of its rows. Shapes and types are checked before anything is read; contents, where a formula relies on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from dormouse_worker.model.quantized.grouped import Chunks, Grouped, chunks_of

Tensors = Mapping[str, torch.Tensor]
SCALES = ("F16", "BF16", "F32")
WORD_BITS = 32  # of the whole numbers that several are packed into
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where in a word each of its columns stands


class Unreadable(Exception):
    """Why a map cannot be read: a clause that goes after its name."""


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor that must be there; of one of these shapes, in one of these types of safetensors."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    is_needed: bool = True


class StoredKind(Protocol):
    """One kind of checkpoint."""

    @property
    def name(self) -> str:
        """Return what people call it, with its sizes."""

    @property
    def beside(self) -> frozenset[str]:
        """Return parts that may be there and say nothing about weights."""

    def parts(self, rows: int, columns: int) -> Mapping[str, Part]:
        """Return what is needed, by the name behind the map's. Raises Unreadable for sizes that it cannot have."""

    def rows_of(self, tensors: Tensors, first: int, end: int, columns: int) -> torch.Tensor:
        """Return the plain weights float32 [end - first, columns]. Raises Unreadable for contents that contradict."""


class ByGroups:
    """A kind whose maps are whole numbers in groups, which may stay (see `grouped`)."""

    bits: int
    group_size: int
    is_ordered = False

    def chunks_of(self, columns: int) -> Chunks | None:
        """Return how numbers lie where they can be kept; None = they are made plain."""
        return chunks_of(self.group_size, columns) if self.bits == 4 and not self.is_ordered else None

    def rows_of(self, tensors: Tensors, first: int, end: int, columns: int) -> torch.Tensor:
        """See `StoredKind`."""
        return self.grouped_rows(tensors, first, end, columns).plain()

    def grouped_rows(self, tensors: Tensors, first: int, end: int, columns: int) -> Grouped:
        """Return some rows. Raises Unreadable."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Gptq(ByGroups):
    """Words of inputs: qweight [in / some, out], and for each group of inputs a scale and a zero of each output."""

    bits: int
    group_size: int  # -1 = all inputs
    zero_offset: int  # 1 where files keep a zero less one
    is_ordered: bool = False  # a group has inputs from anywhere

    beside = frozenset[str]()

    @property
    def name(self) -> str:
        """See `StoredKind`."""
        return f"gptq of {self.bits} bits"

    def parts(self, rows: int, columns: int) -> Mapping[str, Part]:
        """See `StoredKind`."""
        in_word, groups = WORD_BITS // self.bits, _num_groups(columns, self.group_size)
        _require_multiple("outputs", rows, in_word)
        _require_multiple("inputs", columns, in_word)
        return {
            "qweight": Part(((columns // in_word, rows),), ("I32",)),
            "qzeros": Part(((groups, rows // in_word),), ("I32",)),
            "scales": Part(((groups, rows),), SCALES),
            "g_idx": Part(((columns,),), ("I32",), is_needed=self.is_ordered and groups > 1),
        }

    def grouped_rows(self, tensors: Tensors, first: int, end: int, columns: int) -> Grouped:
        """See `ByGroups`."""
        in_word = WORD_BITS // self.bits
        numbers = unpack(tensors["qweight"][:, first:end].T, self.bits)
        some = tensors["qzeros"][:, first // in_word : -(-end // in_word)]
        less = unpack(some, self.bits)[:, first % in_word :][:, : end - first]
        zeros = (less + self.zero_offset) & ((1 << self.bits) - 1)  # files have a zero of 0 less one as all bits
        groups = _groups_of(tensors.get("g_idx"), columns, self.group_size, len(zeros))
        return Grouped(numbers, zeros.T, tensors["scales"][:, first:end].T.float(), groups)


@dataclass(frozen=True, slots=True)
class Awq(ByGroups):
    """Words of outputs, in an order of their own: qweight [in, out / 8]; scales and zeros as GPTQ's."""

    group_size: int  # -1 = all inputs

    bits = 4
    beside = frozenset[str]()

    @property
    def name(self) -> str:
        """See `StoredKind`."""
        return "awq of 4 bits"

    def parts(self, rows: int, columns: int) -> Mapping[str, Part]:
        """See `StoredKind`."""
        in_word, groups = WORD_BITS // self.bits, _num_groups(columns, self.group_size)
        _require_multiple("outputs", rows, in_word)
        return {
            "qweight": Part(((columns, rows // in_word),), ("I32",)),
            "qzeros": Part(((groups, rows // in_word),), ("I32",)),
            "scales": Part(((groups, rows),), SCALES),
        }

    def grouped_rows(self, tensors: Tensors, first: int, end: int, columns: int) -> Grouped:
        """See `ByGroups`."""
        numbers, zeros = (self._some(tensors[name], first, end) for name in ("qweight", "qzeros"))
        groups = _groups_of(None, columns, self.group_size, len(zeros))
        return Grouped(numbers.T, zeros.T, tensors["scales"][:, first:end].T.float(), groups)

    def _some(self, packed: torch.Tensor, first: int, end: int) -> torch.Tensor:
        in_word = WORD_BITS // self.bits
        numbers = unpack(packed[:, first // in_word : -(-end // in_word)], self.bits)
        ordered = numbers.view(len(packed), -1, in_word)[..., list(AWQ_ORDER)].reshape(len(packed), -1)
        return ordered[:, first % in_word :][:, : end - first]


@dataclass(frozen=True, slots=True)
class Packed(ByGroups):
    """compressed-tensors' words of inputs: weight_packed [out, in / some], a scale for each output and group."""

    bits: int
    group_size: int  # -1 = all inputs
    is_symmetric: bool
    is_ordered: bool  # a group has inputs from anywhere

    beside = frozenset({"weight_shape"})

    @property
    def name(self) -> str:
        """See `StoredKind`."""
        return f"compressed-tensors of {self.bits} bits"

    def parts(self, rows: int, columns: int) -> Mapping[str, Part]:
        """See `StoredKind`."""
        in_word, groups = WORD_BITS // self.bits, _num_groups(columns, self.group_size)
        parts = {
            "weight_packed": Part(((rows, -(-columns // in_word)),), ("I32",)),
            "weight_scale": Part(((rows, groups),), SCALES),
        }
        if not self.is_symmetric:
            parts["weight_zero_point"] = Part(((-(-rows // in_word), groups),), ("I32",))
        if self.is_ordered:
            parts["weight_g_idx"] = Part(((columns,),), ("I32",))
        return parts

    def grouped_rows(self, tensors: Tensors, first: int, end: int, columns: int) -> Grouped:
        """See `ByGroups`."""
        scales = tensors["weight_scale"][first:end].float()
        numbers = unpack(tensors["weight_packed"][first:end], self.bits)[:, :columns]
        groups = _groups_of(tensors.get("weight_g_idx"), columns, self.group_size, scales.shape[1])
        return Grouped(numbers, self._zeros(tensors, first, end, scales.shape), scales, groups)

    def _zeros(self, tensors: Tensors, first: int, end: int, shape: torch.Size) -> torch.Tensor:
        if self.is_symmetric:
            return torch.full(shape, 1 << (self.bits - 1), dtype=torch.int32)
        in_word = WORD_BITS // self.bits
        some = tensors["weight_zero_point"][first // in_word : -(-end // in_word)]
        return unpack(some.T, self.bits).T[first % in_word :][: end - first]


@dataclass(frozen=True, slots=True)
class Scaled:
    """Numbers of 8 bits as they are, whole or floating, with a scale of the map, of each output or of each block."""

    dtype: str  # I8 or F8_E4M3
    tool: str
    scale: str  # the name of its part
    block: tuple[int, int] | None = None  # outputs and inputs that share a scale
    is_symmetric: bool = True

    beside = frozenset({"input_scale", "activation_scale", "input_zero_point"})

    @property
    def name(self) -> str:
        """See `StoredKind`."""
        return f"{self.tool} in {self.dtype}"

    def parts(self, rows: int, columns: int) -> Mapping[str, Part]:
        """See `StoredKind`."""
        shapes: tuple[tuple[int, ...], ...] = ((), (1,), (1, 1), (rows,), (rows, 1))
        if self.block is not None:
            shapes = ((-(-rows // self.block[0]), -(-columns // self.block[1])),)
        parts = {"weight": Part(((rows, columns),), (self.dtype,)), self.scale: Part(shapes, SCALES)}
        if not self.is_symmetric:
            parts["weight_zero_point"] = Part(shapes, ("I8",))
        return parts

    def rows_of(self, tensors: Tensors, first: int, end: int, columns: int) -> torch.Tensor:
        """See `StoredKind`."""
        numbers = tensors["weight"][first:end].float()
        if not self.is_symmetric:
            numbers -= self._spread(tensors["weight_zero_point"], first, end, columns)
        return numbers * self._spread(tensors[self.scale], first, end, columns)

    def _spread(self, scales: torch.Tensor, first: int, end: int, columns: int) -> torch.Tensor:
        if self.block is not None:
            by_row = scales.float()[torch.arange(first, end) // self.block[0]]
            return by_row[:, torch.arange(columns) // self.block[1]]
        return scales.float().view(-1, 1)[first:end] if scales.numel() > 1 else scales.float().view(1, 1)


def unpack(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Return int32 [n, m · (32 / bits)] of words [n, m], the lowest bits of each first, without a sign."""
    shifts = torch.arange(0, WORD_BITS, bits, dtype=torch.int32)
    return ((words[..., None] >> shifts) & ((1 << bits) - 1)).reshape(len(words), -1)


def _num_groups(columns: int, group_size: int) -> int:
    if group_size == -1:
        return 1
    _require_multiple("inputs", columns, group_size)
    return columns // group_size


def _require_multiple(what: str, number: int, of: int) -> None:
    if number % of:
        raise Unreadable(f"has {number} {what}, which is no multiple of {of}")


def _groups_of(given: torch.Tensor | None, columns: int, group_size: int, num_groups: int) -> torch.Tensor:
    """Return the group of each input. Raises Unreadable if one is named that is not there."""
    if given is None:
        return torch.arange(columns) // (columns if group_size == -1 else group_size)
    least, most = (int(one) for one in given.aminmax())
    if least < 0 or most >= num_groups:
        raise Unreadable(f"names group {least if least < 0 else most}, and has groups 0 to {num_groups - 1}")
    return given.long()
