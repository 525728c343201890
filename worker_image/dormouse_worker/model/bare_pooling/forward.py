"""A pass of an encoder over packed texts, by our kernels, in float32: every number has the same bits in every batch.

Weights may be bfloat16: each becomes the float32 that it stands for when it is multiplied, or looked up.

rows       | text 0 | text 1 |   text 2   |     [T, hidden], one behind the other, without padding
attention  each row sees its own text, what follows included: keys and values are used where the maps put them, as a
paged cache with blocks of one token
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import pointer
from dataclasses import dataclass

import numpy as np

from dormouse_worker.engine.pooling.batch import PooledSequence
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.bare_pooling.config import EncoderConfig
from dormouse_worker.model.bare_pooling.maps import KernelMaps
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
        self._norms: list[Floats] = []  # to which the structures below point
        self._norm = self._norm_of(f"{config.root}embeddings.LayerNorm")
        self._layers = [self._layer_of(config.begins(layer)) for layer in range(config.num_hidden_layers)]
        self._scratch: Floats = np.empty(0, dtype=np.float32)

    def __repr__(self) -> str:
        return f"NativeEncoder({len(self._layers)} layers of {self._config.hidden_size}, {self._kernels.name})"

    @property
    def hidden_size(self) -> int:
        """Return the numbers of a row."""
        return self._config.hidden_size

    def hidden_states(self, texts: Sequence[PooledSequence]) -> Floats:
        """Return float32 [T, hidden] of packed texts; valid until the next pass.

        Raises IndexError for a token that is not in the vocabulary, and a text that is longer than the positions.
        """
        packed = _Packed(texts)
        embedded = self._embed(packed)
        count, hidden, inner = len(embedded), self._config.hidden_size, self._config.intermediate_size
        one, two, three, four, wide = self._rows(count, (hidden, hidden, hidden, hidden, inner))
        self._normalize(embedded, None, self._norm, one)
        attention = self._attention(two, three)
        batch = packed.describe()
        for layer in self._layers:
            self._maps.multiply(one, layer.key, two)
            self._maps.multiply(one, layer.value, three)
            self._maps.multiply(one, layer.query, four)
            query = abi.Heads(address_of(four), hidden, self._config.head_size)
            self._kernels.attend(attention, batch, batch.groups.contents, query, address_of(embedded))
            self._maps.multiply(embedded, layer.attended, two)
            self._normalize(two, one, layer.attended_norm, one)
            self._maps.multiply(one, layer.wide, wide)
            self._kernels.gate(address_of(wide), wide.size)
            self._maps.multiply(wide, layer.narrow, two)
            self._normalize(two, one, layer.norm, one)
        return one

    def _embed(self, packed: _Packed) -> Floats:
        """Return the sum of what stands for each token, its place and its kind, [T, hidden]."""
        words, places, *kinds = (self._weights.tensor(self._config.table(name)) for name in self._config.embedded)
        embedded = floats_of(words[packed.token_ids])  # a copy
        embedded += floats_of(places[packed.positions + self._config.first_position])
        for table in kinds:
            has_pairs = packed.kinds is not None and len(table) > 1
            embedded += floats_of(table[packed.kinds] if has_pairs else table[:1])
        return embedded

    def _rows(self, count: int, sizes: Sequence[int]) -> list[Floats]:
        """Return room for so many rows of each size, of which nothing is known."""
        if self._scratch.size < count * sum(sizes):
            self._scratch = np.empty(count * sum(sizes), dtype=np.float32)
        rows, start = [], 0
        for size in sizes:
            rows.append(self._scratch[start : start + count * size].reshape(count, size))
            start += count * size
        return rows

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

    def _normalize(self, rows: Floats, more: Floats | None, norm: abi.LayerNorm, out: Floats) -> None:
        other = None if more is None else address_of(more)
        sizes = {"num_rows": len(rows), "columns": rows.shape[1]}
        self._kernels.normalize(address_of(rows), other, norm, address_of(out), **sizes)

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
        weight, bias = (floats_of(self._weights.tensor(f"{name}.{kind}")) for kind in ("weight", "bias"))
        self._norms += [weight, bias]
        return abi.LayerNorm(address_of(weight), address_of(bias), self._config.layer_norm_eps)


class _Packed:
    """Texts one behind the other, as arrays that lie still as long as this lives."""

    def __init__(self, texts: Sequence[PooledSequence]) -> None:
        lengths = np.array([text.num_tokens for text in texts], dtype=np.int64)
        self._starts: Ints = np.concatenate([[0], np.cumsum(lengths)])
        self._last_seen: Ints = np.repeat(lengths - 1, lengths)
        self._tables = self._starts[:-1, None] + np.arange(lengths.max())
        self.token_ids: Ints = np.concatenate([np.asarray(text.token_ids, dtype=np.int64) for text in texts])
        self.positions: Ints = np.arange(self._starts[-1]) - np.repeat(self._starts[:-1], lengths)
        self.kinds = self._kinds(texts, lengths)

    def describe(self) -> abi.Batch:
        """Return the pass as the kernels' attention reads it."""
        group = abi.Group(block_tables=address_of(self._tables), num_columns=self._tables.shape[1])
        return abi.Batch(
            num_seqs=len(self._starts) - 1,
            num_tokens=len(self.positions),
            block_size=1,
            query_starts=address_of(self._starts),
            positions=address_of(self.positions),
            groups=pointer(group),
            last_seen=address_of(self._last_seen),
        )

    def _kinds(self, texts: Sequence[PooledSequence], lengths: Ints) -> Ints | None:
        """Return 1 for each token of a pair's second text, else 0; None where there are no pairs."""
        seconds = np.array([text.second_start for text in texts], dtype=np.int64)
        if not seconds.any():
            return None
        begins = np.repeat(np.where(seconds > 0, seconds, lengths), lengths)
        kinds: Ints = (self.positions >= begins).astype(np.int64)
        return kinds
