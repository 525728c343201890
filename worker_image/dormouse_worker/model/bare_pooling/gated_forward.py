"""A pass of a network with rotary positions and gated blocks over packed texts, by our kernels.

As of an encoder, all is float32, weights may be bfloat16, and every number has the same bits in every batch.

    norms first   a block takes norm(rows), and rows becomes rows + block
    norms behind  a block takes rows, and rows becomes norm(rows + block)
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from dormouse_worker.engine.pooling.batch import PooledSequence
from dormouse_worker.model.bare_pooling.gated import Attending, GatedConfig
from dormouse_worker.model.bare_pooling.maps import KernelMaps, KernelNorms
from dormouse_worker.model.bare_pooling.packed import Packed, Part, Room
from dormouse_worker.model.rotary import frequencies
from dormouse_worker.model.scratch import Floats, address_of
from dormouse_worker.model.tensors import floats_of
from dormouse_worker.model.weights.store import WeightStore
from dormouse_worker.native import abi
from dormouse_worker.native.library import Kernels

_GATES: Mapping[str, int] = MappingProxyType({"gelu": abi.GELU, "silu": abi.SILU})


@dataclass(frozen=True, slots=True)
class _Layer:
    maps: Mapping[str, abi.Linear]  # by the words of `GatedNames`
    head_norms: tuple[abi.LayerNorm, abi.LayerNorm] | None
    way: int  # of those in which layers attend


@dataclass(frozen=True, slots=True)
class _Rows:
    """Room for what a pass computes, [T, ·]."""

    normed: Floats
    change: Floats  # what a block makes
    query: Floats
    key: Floats
    value: Floats
    attended: Floats
    gate: Floats
    other: Floats


@dataclass(frozen=True, slots=True)
class _Way:
    """How some layers attend in one pass."""

    parts: Sequence[Part]
    attention: abi.Attention
    inv_freq: Floats


class GatedNetwork:
    """A decoder without its head, or an encoder built like one. Weights are the store's."""

    def __init__(self, config: GatedConfig, weights: WeightStore, maps: KernelMaps, kernels: Kernels) -> None:
        self._config, self._weights, self._maps, self._kernels = config, weights, maps, kernels
        self._norms = KernelNorms(weights, kernels, config.eps, keeps_mean=config.family.keeps_mean)
        self._words_norm = self._norm_of(config.words_norm)
        self._order = [self._norm_of(name) for name in config.norms]
        self._layers = [self._layer_of(layer) for layer in range(len(config.layers))]
        self._frequencies = [frequencies(way.rope, config.head_size) for way in config.ways]

    def __repr__(self) -> str:
        return f"GatedNetwork({len(self._layers)} layers of {self._config.hidden_size}, {self._kernels.name})"

    @property
    def hidden_size(self) -> int:
        """Return the numbers of a row."""
        return self._config.hidden_size

    def hidden_states(self, texts: Sequence[PooledSequence], room: Room) -> Generator[None, None, Floats]:
        """Yield between steps; return float32 [T, hidden] of packed texts, which may lie in the room.

        Raises IndexError for a token that is not in the vocabulary.
        """
        packed = Packed(texts)
        hidden = self._embed(packed)
        rows = self._rows(len(hidden), room)
        ways = [self._way(packed, rows, place) for place in range(len(self._frequencies))]
        taken = self._normed(hidden, self._order[0], rows)
        for layer, behind_attention, behind_block in zip(
            self._layers, self._order[1::2], self._order[2::2], strict=True
        ):
            yield from self._attend(layer, ways[layer.way], taken, packed, rows)
            taken = self._add(hidden, behind_attention, rows)
            yield from self._compute_block(layer, taken, rows)
            taken = self._add(hidden, behind_block, rows)
        return taken

    def _embed(self, packed: Packed) -> Floats:
        """Return what stands for each token, and its kind, [T, hidden]."""
        embedded = floats_of(self._weights.tensor(self._config.words)[packed.token_ids])  # a copy
        if self._config.kinds is not None:
            kinds = self._weights.tensor(self._config.kinds)
            has_pairs = packed.kinds is not None and len(kinds) > 1
            embedded += floats_of(kinds[packed.kinds] if has_pairs else kinds[:1])
        if self._words_norm is not None:
            self._norms.apply(self._words_norm, embedded, None, embedded)
        return embedded

    def _attend(self, layer: _Layer, way: _Way, taken: Floats, packed: Packed, rows: _Rows) -> Iterator[None]:
        """Set `change` to what attention makes of rows."""
        yield from self._maps.steps(taken, layer.maps["key"], rows.key)
        yield from self._maps.steps(taken, layer.maps["value"], rows.value)
        yield from self._maps.steps(taken, layer.maps["query"], rows.query)
        for place, heads in enumerate((rows.query, rows.key)):
            if layer.head_norms is not None:
                single = heads.reshape(-1, self._config.head_size)
                self._norms.apply(layer.head_norms[place], single, None, single)
            self._rotate(heads, packed, way.inv_freq)
        for part in way.parts:
            query = abi.Heads(address_of(rows.query[part.rows]), self._config.query_width, self._config.head_size)
            groups = part.batch.groups.contents
            self._kernels.attend(way.attention, part.batch, groups, query, address_of(rows.attended[part.rows]))
            yield
        yield from self._maps.steps(rows.attended, layer.maps["attended"], rows.change)

    def _compute_block(self, layer: _Layer, taken: Floats, rows: _Rows) -> Iterator[None]:
        """Set `change` to what the gated block makes of rows."""
        yield from self._maps.steps(taken, layer.maps["gate"], rows.gate)
        yield from self._maps.steps(taken, layer.maps["other"], rows.other)
        kind = _GATES[self._config.family.gate]
        self._kernels.gate(kind, address_of(rows.gate), address_of(rows.other), count=rows.gate.size)
        yield
        yield from self._maps.steps(rows.gate, layer.maps["narrow"], rows.change)

    def _add(self, hidden: Floats, norm: abi.LayerNorm | None, rows: _Rows) -> Floats:
        """Add to the rows what a block made; return what the next one takes."""
        if self._config.family.norms_first:
            hidden += rows.change
            return self._normed(hidden, norm, rows)
        assert norm is not None, "one stands behind each block"
        self._norms.apply(norm, rows.change, hidden, hidden)
        return hidden

    def _normed(self, hidden: Floats, norm: abi.LayerNorm | None, rows: _Rows) -> Floats:
        """Return normed rows, or the rows themselves where there is no norm."""
        if norm is None:
            return hidden
        self._norms.apply(norm, hidden, None, rows.normed)
        return rows.normed

    def _rotate(self, heads: Floats, packed: Packed, inv_freq: Floats) -> None:
        count, size = len(heads), self._config.head_size
        sizes = {"num_rows": count, "num_heads": heads.shape[1] // size, "size": size}
        self._kernels.rotate(address_of(heads), address_of(packed.positions), address_of(inv_freq), **sizes)

    def _rows(self, count: int, room: Room) -> _Rows:
        config = self._config
        hidden, inner, keys, queries = (
            config.hidden_size,
            config.intermediate_size,
            config.key_width,
            config.query_width,
        )
        return _Rows(*room.rows(count, (hidden, hidden, queries, keys, keys, queries, inner, inner)))

    def _way(self, packed: Packed, rows: _Rows, place: int) -> _Way:
        config, way = self._config, self._config.ways[place]
        return _Way(
            packed.describe(config.query_width, way.window, is_causal=way.is_causal),
            _attention(config, way, rows),
            self._frequencies[place],
        )

    def _layer_of(self, layer: int) -> _Layer:
        names = self._config.head_norms(layer)
        return _Layer(
            maps={
                use: self._maps.linear(piece.name, slice(piece.start, piece.end))
                for use, piece in self._config.pieces(layer).items()
            },
            head_norms=None if names is None else (self._head_norm(names[0]), self._head_norm(names[1])),
            way=self._config.layers[layer],
        )

    def _head_norm(self, name: str) -> abi.LayerNorm:
        return self._norms.norm(name, has_bias=False)

    def _norm_of(self, name: str | None) -> abi.LayerNorm | None:
        return None if name is None else self._norms.norm(name, has_bias=self._config.family.has_norm_biases)


def _attention(config: GatedConfig, way: Attending, rows: _Rows) -> abi.Attention:
    return abi.Attention(
        dtype=abi.FLOAT32,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        key_size=config.head_size,
        value_size=config.head_size,
        window=way.window or 0,
        scale=config.head_size**-0.5,
        keys=address_of(rows.key),
        values=address_of(rows.value),
    )
