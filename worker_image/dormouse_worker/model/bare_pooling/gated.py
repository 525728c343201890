"""Networks with rotary positions and gated blocks, as decoders have them: sizes, and what tensors are called. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dormouse_worker.model.bare_pooling.heads import HeadNames


@dataclass(frozen=True, slots=True)
class GatedNames:
    """What the tensors are called; those of a layer behind what all of them begin with.

    Maps with one name lie in it one behind the other, in the order of this page.
    """

    words: str
    begins: str  # with a place for the layer's number
    query: str
    key: str
    value: str
    attended: str
    gate: str
    other: str  # what the gate is multiplied with
    narrow: str
    attention_norm: str
    block_norm: str
    last_norm: str | None  # behind all layers
    words_norm: str | None = None  # of what stands for a token
    kinds: str | None = None  # of tokens, for pairs


@dataclass(frozen=True, slots=True)
class GatedFamily:
    """What networks of one kind do alike."""

    names: GatedNames
    gate: Literal["gelu", "silu"]
    keeps_mean: bool = False  # norms are by the root mean square
    has_norm_biases: bool = False
    norms_first: bool = True  # what a block takes is normed, not the sum with what it makes
    norms_first_layer: bool = True  # before it attends


@dataclass(frozen=True, slots=True)
class Attending:
    """How a layer attends."""

    rope: Mapping[str, Any]  # what `rotary.frequencies` takes
    window: int | None = None  # a row sees what is less than so many places away
    is_causal: bool = False  # and nothing behind it


@dataclass(frozen=True, slots=True)
class Piece:
    """A linear map: the outputs [start, end) of what the files have under a name."""

    name: str
    start: int
    end: int
    inputs: int
    has_bias: bool


@dataclass(frozen=True, slots=True)
class GatedConfig:
    """A network's sizes, and its family."""

    hidden_size: int
    intermediate_size: int
    max_position_embeddings: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    head_size: int
    eps: float
    ways: tuple[Attending, ...]
    layers: tuple[int, ...]  # which of these ways each attends
    family: GatedFamily
    root: str  # how the network's names begin
    head: HeadNames  # what stands behind it where it classifies
    type_vocab_size: int = 0  # 0 = there are no kinds of tokens
    has_biases: bool = False  # of queries, keys and values
    has_head_norms: bool = False
    padding: int | None = None  # the token that a head which reads the last one does not
    unread: frozenset[str] = frozenset()  # tensors that may lie in the files, without the root

    @property
    def words(self) -> str:
        """Return the name of the tensor with what stands for each token."""
        return f"{self.root}{self.family.names.words}.weight"

    @property
    def words_norm(self) -> str | None:
        """Return the name of its norm, if there is one."""
        name = self.family.names.words_norm
        return None if name is None else self.root + name

    @property
    def kinds(self) -> str | None:
        """Return the name of the tensor with what stands for each kind of tokens, if there is one."""
        name = self.family.names.kinds
        return None if name is None else f"{self.root}{name}.weight"

    @property
    def max_length(self) -> int:
        """Return the longest text in tokens."""
        return self.max_position_embeddings

    @property
    def unused(self) -> frozenset[str]:
        """Return the names of tensors that may lie in the files, and that no pass reads."""
        return self.unread

    @property
    def key_width(self) -> int:
        """Return the numbers of a row's keys, or values."""
        return self.num_key_value_heads * self.head_size

    @property
    def query_width(self) -> int:
        """Return the numbers of a row's queries."""
        return self.num_attention_heads * self.head_size

    def begins(self, layer: int) -> str:
        """Return how the names of a layer's tensors begin."""
        return self.root + self.family.names.begins.format(layer)

    def pieces(self, layer: int) -> dict[str, Piece]:
        """Return a layer's maps by what they are for: the words of `GatedNames`."""
        names, begins, hidden = self.family.names, self.begins(layer), self.hidden_size
        sizes = {
            "query": (names.query, self.query_width, hidden, self.has_biases),
            "key": (names.key, self.key_width, hidden, self.has_biases),
            "value": (names.value, self.key_width, hidden, self.has_biases),
            "attended": (names.attended, hidden, self.query_width, False),
            "gate": (names.gate, self.intermediate_size, hidden, False),
            "other": (names.other, self.intermediate_size, hidden, False),
            "narrow": (names.narrow, hidden, self.intermediate_size, False),
        }
        found: dict[str, Piece] = {}
        ends: dict[str, int] = {}
        for use, (name, outputs, inputs, has_bias) in sizes.items():
            start = ends.get(name, 0)
            ends[name] = start + outputs
            found[use] = Piece(begins + name, start, start + outputs, inputs, has_bias)
        return found

    @property
    def norms(self) -> tuple[str | None, ...]:
        """Return the names of norms in the order in which rows meet them, None = there is none.

        One stands before the first layer, then one behind each attention and one behind each block.
        """
        names = self.family.names
        kinds = (names.attention_norm, names.block_norm)
        order: list[str | None] = [self.begins(layer) + kind for layer in range(len(self.layers)) for kind in kinds]
        if not self.family.norms_first_layer:
            order[0] = None
        if not self.family.norms_first:
            return (None, *order)
        return (*order, None if names.last_norm is None else self.root + names.last_norm)

    def head_norms(self, layer: int) -> tuple[str, str] | None:
        """Return the names of the norms of query heads and key heads, if there are such."""
        begins = self.begins(layer) + "self_attn."
        return (f"{begins}q_norm", f"{begins}k_norm") if self.has_head_norms else None

    def shapes(self, num_labels: int = 0) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor that a pass reads, by name; of a classifier with so many labels, 0 = none."""
        hidden = self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {self.words: (self.vocab_size, hidden)}
        if self.kinds is not None:
            shapes[self.kinds] = (self.type_vocab_size, hidden)
        for layer in range(len(self.layers)):
            for piece in self.pieces(layer).values():  # the last of one name has the most outputs
                shapes[f"{piece.name}.weight"] = (piece.end, piece.inputs)
                if piece.has_bias:
                    shapes[f"{piece.name}.bias"] = (piece.end,)
            shapes |= {f"{name}.weight": (self.head_size,) for name in self.head_norms(layer) or ()}
        for name in filter(None, (self.words_norm, *self.norms)):
            shapes |= {f"{name}.{kind}": (hidden,) for kind in ("weight", "bias")[: 1 + self.family.has_norm_biases]}
        return shapes | (self.head.shapes(hidden, num_labels) if num_labels else {})
