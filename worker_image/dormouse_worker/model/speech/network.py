"""Whisper's forward pass over places of a cache: transformers' encoder, and its decoder's layers, with our attention.

Rows of all windows go through each map together; attention is each window's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from dormouse_worker.engine.speech.batch import SpeechRow
from dormouse_worker.model.speech.cache import KeysValues, Places


@dataclass(frozen=True, slots=True)
class Network:
    """A loaded `WhisperForConditionalGeneration`."""

    module: Any
    device: torch.device

    def encode(self, features: torch.Tensor, places: Places, place: int) -> None:
        """Write what each layer of the decoder attends to of features [mels, frames] into a place."""
        moved = features.to(self.device, self.module.dtype)[None]
        encoded = self.module.model.encoder(moved).last_hidden_state[0]
        for number, layer in enumerate(self.module.model.decoder.layers):
            attention, rows = layer.encoder_attn, places.cross_of(place, number)
            rows.key.copy_(_by_head(attention.k_proj(encoded), attention))
            rows.value.copy_(_by_head(attention.v_proj(encoded), attention))

    def decode(self, rows: Sequence[SpeechRow], places: Places) -> torch.Tensor:
        """Return hidden states [T, H] of all tokens that are not cached, row by row; they are cached then."""
        decoder, spans = self.module.model.decoder, spans_of(rows)
        ids = [token for row in rows for token in row.token_ids[row.num_cached :]]
        positions = [place for row in rows for place in range(row.num_cached, len(row.token_ids))]
        hidden = decoder.embed_tokens(self._long(ids)) + decoder.embed_positions.weight[self._long(positions)]
        for number, layer in enumerate(decoder.layers):
            hidden = hidden + self._self_attention(layer, number, hidden, rows, spans, places)
            hidden = hidden + self._cross_attention(layer, number, hidden, rows, spans, places)
            inner = layer.activation_fn(layer.fc1(layer.final_layer_norm(hidden)))
            hidden = hidden + layer.fc2(inner)
        normed: torch.Tensor = decoder.layer_norm(hidden)
        return normed

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 [N, V] of hidden states [N, H]."""
        scored: torch.Tensor = self.module.proj_out(hidden)
        return scored.float()

    def _self_attention(
        self,
        layer: Any,
        number: int,
        hidden: torch.Tensor,
        rows: Sequence[SpeechRow],
        spans: Sequence[slice],
        places: Places,
    ) -> torch.Tensor:
        attention, normed = layer.self_attn, layer.self_attn_layer_norm(hidden)
        query = _query(normed, attention)
        key, value = (_by_head(project(normed), attention) for project in (attention.k_proj, attention.v_proj))
        mixed = torch.empty_like(query)
        for row, span in zip(rows, spans, strict=True):
            known = places.own_of(row.place, number, len(row.token_ids))
            known.key[row.num_cached :] = key[span]
            known.value[row.num_cached :] = value[span]
            mixed[span] = _attend(query[span], known, num_before=row.num_cached)
        out: torch.Tensor = attention.out_proj(mixed.flatten(1))
        return out

    def _cross_attention(
        self,
        layer: Any,
        number: int,
        hidden: torch.Tensor,
        rows: Sequence[SpeechRow],
        spans: Sequence[slice],
        places: Places,
    ) -> torch.Tensor:
        attention = layer.encoder_attn
        query = _query(layer.encoder_attn_layer_norm(hidden), attention)
        mixed = torch.empty_like(query)
        for row, span in zip(rows, spans, strict=True):
            mixed[span] = _attend(query[span], places.cross_of(row.place, number))
        out: torch.Tensor = attention.out_proj(mixed.flatten(1))
        return out

    def _long(self, numbers: list[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self.device)


def spans_of(rows: Sequence[SpeechRow]) -> list[slice]:
    """Return where each row's new tokens stand in a pass."""
    spans, begin = [], 0
    for row in rows:
        end = begin + len(row.token_ids) - row.num_cached
        spans.append(slice(begin, end))
        begin = end
    return spans


def _query(normed: torch.Tensor, attention: Any) -> torch.Tensor:
    """Return [T, heads, head_size], scaled before it is split up, as transformers does."""
    return _by_head(attention.q_proj(normed) * attention.scaling, attention)


def _by_head(projected: torch.Tensor, attention: Any) -> torch.Tensor:
    return projected.view(len(projected), attention.num_heads, attention.head_dim)


def _attend(query: torch.Tensor, known: KeysValues, *, num_before: int | None = None) -> torch.Tensor:
    """Return [T, heads, head_size] of queries that see all rows; with `num_before` each sees those up to its own."""
    num_queries, num_known = len(query), len(known.key)
    mask = None
    if num_before is not None and num_queries > 1:
        seen = torch.arange(num_known, device=query.device)
        mask = seen <= (num_before + torch.arange(num_queries, device=query.device))[:, None]
    q, k, v = (rows.transpose(0, 1)[None] for rows in (query, known.key, known.value))
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)[0].transpose(0, 1)
