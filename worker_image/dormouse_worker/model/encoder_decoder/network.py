"""The forward pass of an encoder-decoder model over the paged cache.

In the blocks of a source lie, of every layer, the keys and values of its cross attention; in those behind it the keys
and values of the decoder's own tokens. Both have the same shape, so one table serves both.

Rows of all sequences go through each map together; attention and encoder are each sequence's own, so that nothing of it
depends on who is beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from dormouse_worker.model.encoder_decoder.parts import Attention, Decoder, Layer, decoder_of, relative_bias
from dormouse_worker.model.kv_cache import KVCache, LayerCache


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence in a pass of T tokens."""

    source: slice  # of the T: what the encoder reads now; empty if it has
    target: slice  # of the T: tokens of the decoder
    source_slots: torch.Tensor  # of the whole source
    target_slots: torch.Tensor  # of the decoder's tokens, up to the last one of this pass
    rows: slice  # of all decoder's tokens of the pass

    @property
    def num_targets(self) -> int:
        """Return how many tokens of the decoder the pass computes."""
        return _length(self.rows)

    @property
    def num_before(self) -> int:
        """Return how many of them were computed before."""
        return len(self.target_slots) - self.num_targets


class Network:
    """A loaded module, and its decoder by parts."""

    def __init__(self, module: Any) -> None:
        self._encoder = module.get_encoder()
        self._decoder: Decoder = decoder_of(module)

    def __repr__(self) -> str:
        return f"Network({len(self._decoder.layers)} layers)"

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, spans: Sequence[Span], cache: KVCache
    ) -> torch.Tensor:
        """Return hidden states [T, H]; of a source the encoder's, of padding zeros. Keys and values are cached then.

        `positions` [T] count the decoder's tokens from 0; those of sources mean nothing.
        """
        encoded = self._encode(token_ids, spans)
        targets = torch.cat([torch.arange(span.target.start, span.target.stop) for span in spans]).to(token_ids.device)
        hidden = self._decoder.embed(token_ids[targets], positions[targets])
        biases: list[torch.Tensor | None] = [None] * len(spans)
        for number, layer in enumerate(self._decoder.layers):
            pool = cache.layer(number)
            for place, states in encoded.items():
                key, value = (layer.cross.by_head(project(states)) for project in (layer.cross.key, layer.cross.value))
                pool.write(spans[place].source_slots, key, value)
            if layer.bias is not None:
                biases = [relative_bias(layer.bias, span.num_before, span.num_targets) for span in spans]
            hidden = self._layer(layer, hidden, spans, biases, pool)
        hidden = self._decoder.finish(hidden)
        every = hidden.new_zeros(len(token_ids), hidden.shape[1])
        every[targets] = hidden
        for place, states in encoded.items():
            every[spans[place].source] = states
        return every

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [N, V] of hidden states [N, H]."""
        return self._decoder.score(hidden)

    def _encode(self, token_ids: torch.Tensor, spans: Sequence[Span]) -> dict[int, torch.Tensor]:
        """Return by place in `spans` what the encoder makes of the sources that it reads now; equal ones once."""
        found: dict[tuple[int, ...], torch.Tensor] = {}
        encoded: dict[int, torch.Tensor] = {}
        for place, span in enumerate(spans):
            if _length(span.source):
                ids = token_ids[span.source]
                name = tuple(ids.tolist())
                if name not in found:
                    found[name] = self._encoder(input_ids=ids[None]).last_hidden_state[0]
                encoded[place] = found[name]
        return encoded

    def _layer(
        self,
        layer: Layer,
        hidden: torch.Tensor,
        spans: Sequence[Span],
        biases: Sequence[torch.Tensor | None],
        pool: LayerCache,
    ) -> torch.Tensor:
        if not len(hidden):  # sources alone
            return hidden

        def own(normed: torch.Tensor) -> torch.Tensor:
            attention = layer.own
            key, value = (attention.by_head(project(normed)) for project in (attention.key, attention.value))
            pool.write(torch.cat([span.target_slots[span.num_before :] for span in spans]), key, value)
            query = attention.by_head(attention.query(normed))
            mixed = torch.empty_like(query)
            for span, bias in zip(spans, biases, strict=True):
                if span.num_targets:
                    mask = _mask(span, bias)
                    mixed[span.rows] = _attend(attention, query[span.rows], pool, span.target_slots, mask)
            return attention.out(mixed.flatten(1))

        def cross(normed: torch.Tensor) -> torch.Tensor:
            attention = layer.cross
            query = attention.by_head(attention.query(normed))
            mixed = torch.empty_like(query)
            for span in spans:
                if span.num_targets:
                    mixed[span.rows] = _attend(attention, query[span.rows], pool, span.source_slots, None)
            return attention.out(mixed.flatten(1))

        hidden = layer.around(hidden, layer.own_norm, own)
        hidden = layer.around(hidden, layer.cross_norm, cross)
        return layer.feed(hidden)


def _length(rows: slice) -> int:
    length: int = rows.stop - rows.start
    return length


def _mask(span: Span, bias: torch.Tensor | None) -> torch.Tensor | None:
    """Return what is added to scores [heads, queries, keys], or which keys count; None = all do, and nothing is."""
    num_queries, num_keys = span.num_targets, len(span.target_slots)
    if num_queries == 1:
        return bias
    keys = torch.arange(num_keys, device=span.target_slots.device)
    is_hidden = keys > (span.num_before + torch.arange(num_queries, device=keys.device))[:, None]
    return ~is_hidden if bias is None else bias.masked_fill(is_hidden, float("-inf"))


def _attend(
    attention: Attention, query: torch.Tensor, pool: LayerCache, slots: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Return [T, heads, head_size] of queries [T, heads, head_size] that see the rows at these slots."""
    key, value = (rows.index_select(0, slots).transpose(0, 1)[None] for rows in (pool.key, pool.value))
    given = query.transpose(0, 1)[None]
    mixed = functional.scaled_dot_product_attention(given, key, value, attn_mask=mask, scale=attention.scale)
    return mixed[0].transpose(0, 1)
