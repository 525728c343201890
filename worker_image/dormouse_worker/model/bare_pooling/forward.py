"""A pass of an encoder over packed texts, by our kernels, in float32: every number has the same bits in every batch.

Weights may be bfloat16: each becomes the float32 that it stands for when it is multiplied, or looked up.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from dormouse_worker.engine.pooling.batch import PooledSequence
from dormouse_worker.model.bare_pooling.config import EncoderConfig
from dormouse_worker.model.bare_pooling.maps import KernelMaps, KernelNorms
from dormouse_worker.model.bare_pooling.packed import Packed, Room
from dormouse_worker.model.scratch import Floats, address_of
from dormouse_worker.model.tensors import floats_of
from dormouse_worker.model.weights.store import WeightStore
from dormouse_worker.native import abi
from dormouse_worker.native.library import Kernels


@dataclass(frozen=True, slots=True)
class _Layer:
    query: abi.Linear
    key: abi.Linear
    value: abi.Linear
    attended: abi.Linear
    wide: abi.Linear
    narrow: abi.Linear
    attended_norm: abi.LayerNorm
    norm: abi.LayerNorm


class NativeEncoder:
    """A BERT, or one of its kind: learned positions, norms behind the blocks, GELU. Weights are the store's."""

    def __init__(self, config: EncoderConfig, weights: WeightStore, maps: KernelMaps, kernels: Kernels) -> None:
        self._config, self._weights, self._maps, self._kernels = config, weights, maps, kernels
        self._norms = KernelNorms(weights, kernels, config.layer_norm_eps)
        self._norm = self._norm_of(f"{config.root}embeddings.LayerNorm")
        self._layers = [self._layer_of(config.begins(layer)) for layer in range(config.num_hidden_layers)]

    def __repr__(self) -> str:
        return f"NativeEncoder({len(self._layers)} layers of {self._config.hidden_size}, {self._kernels.name})"

    @property
    def hidden_size(self) -> int:
        """Return the numbers of a row."""
        return self._config.hidden_size

    def hidden_states(self, texts: Sequence[PooledSequence], room: Room) -> Generator[None, None, Floats]:
        """Yield between steps; return float32 [T, hidden] of packed texts, which lie in the room.

        Raises IndexError for a token that is not in the vocabulary, and a text that is longer than the positions.
        """
        packed = Packed(texts)
        embedded = self._embed(packed)
        count, hidden, inner = len(embedded), self._config.hidden_size, self._config.intermediate_size
        one, two, three, four, wide = room.rows(count, (hidden, hidden, hidden, hidden, inner))
        self._norms.apply(self._norm, embedded, None, one)
        attention = self._attention(two, three)
        parts = packed.describe(hidden)
        for layer in self._layers:
            yield from self._maps.steps(one, layer.key, two)
            yield from self._maps.steps(one, layer.value, three)
            yield from self._maps.steps(one, layer.query, four)
            for part in parts:
                query = abi.Heads(address_of(four[part.rows]), hidden, self._config.head_size)
                groups = part.batch.groups.contents
                self._kernels.attend(attention, part.batch, groups, query, address_of(embedded[part.rows]))
                yield
            yield from self._maps.steps(embedded, layer.attended, two)
            self._norms.apply(layer.attended_norm, two, one, one)
            yield from self._maps.steps(one, layer.wide, wide)
            self._kernels.gate(abi.GELU, address_of(wide), None, count=wide.size)
            yield
            yield from self._maps.steps(wide, layer.narrow, two)
            self._norms.apply(layer.norm, two, one, one)
        return one

    def _embed(self, packed: Packed) -> Floats:
        """Return the sum of what stands for each token, its place and its kind, [T, hidden]."""
        words, places, *kinds = (self._weights.tensor(self._config.table(name)) for name in self._config.embedded)
        embedded = floats_of(words[packed.token_ids])  # a copy
        embedded += floats_of(places[packed.positions + self._config.first_position])
        for table in kinds:
            has_pairs = packed.kinds is not None and len(table) > 1
            embedded += floats_of(table[packed.kinds] if has_pairs else table[:1])
        return embedded

    def _attention(self, keys: Floats, values: Floats) -> abi.Attention:
        size, heads = self._config.head_size, self._config.num_attention_heads
        return abi.Attention(
            dtype=abi.FLOAT32,
            num_heads=heads,
            num_kv_heads=heads,
            key_size=size,
            value_size=size,
            scale=size**-0.5,
            keys=address_of(keys),
            values=address_of(values),
        )

    def _layer_of(self, begins: str) -> _Layer:
        names = self._config.family.layer
        query, key, value, attended, wide, narrow = (
            self._maps.linear(begins + name)
            for name in (names.query, names.key, names.value, names.attended, names.wide, names.narrow)
        )
        return _Layer(
            query=query,
            key=key,
            value=value,
            attended=attended,
            wide=wide,
            narrow=narrow,
            attended_norm=self._norm_of(begins + names.attended_norm),
            norm=self._norm_of(begins + names.norm),
        )

    def _norm_of(self, name: str) -> abi.LayerNorm:
        return self._norms.norm(name, has_bias=True)
