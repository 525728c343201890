"""Whisper's forward pass over places of a cache: transformers' encoder, and its decoder's layers, with our attention.

Rows of all windows go through each map together; attention is each window's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dormouse_worker.engine.speech.batch import SpeechRow
from dormouse_worker.model.speech.arithmetic import Arithmetic
from dormouse_worker.model.speech.cache import Places


@dataclass(frozen=True, slots=True)
class Network:
    """A loaded `WhisperForConditionalGeneration`."""

    module: Any
    device: torch.device
    arithmetic: Arithmetic

    def encode(self, features: torch.Tensor, places: Places, place: int) -> None:
        """Write what each layer of the decoder attends to of features [mels, frames] into a place."""
        encoded, linear = self.arithmetic.encode(features), self.arithmetic.linear
        for number, layer in enumerate(self.module.model.decoder.layers):
            attention, rows = layer.encoder_attn, places.cross_of(place, number)
            rows.key.copy_(_by_head(linear(attention.k_proj, encoded), attention).transpose(0, 1))
            rows.value.copy_(_by_head(linear(attention.v_proj, encoded), attention).transpose(0, 1))

    def decode(self, rows: Sequence[SpeechRow], places: Places) -> torch.Tensor:
        """Return hidden states [T, H] of all tokens that are not cached, row by row; they are cached then."""
        decoder, windows = self.module.model.decoder, self.arithmetic.windows(rows, places)
        linear = self.arithmetic.linear
        ids = [token for row in rows for token in row.token_ids[row.num_cached :]]
        positions = [place for row in rows for place in range(row.num_cached, len(row.token_ids))]
        hidden = decoder.embed_tokens(self._long(ids)) + decoder.embed_positions.weight[self._long(positions)]
        for number, layer in enumerate(decoder.layers):
            own, cross = layer.self_attn, layer.encoder_attn
            normed = layer.self_attn_layer_norm(hidden)
            key, value = (_by_head(linear(part, normed), own) for part in (own.k_proj, own.v_proj))
            mixed = windows.attend_own(number, self._query(own, normed), key, value)
            hidden = hidden + linear(own.out_proj, mixed.flatten(1))
            mixed = windows.attend_cross(number, self._query(cross, layer.encoder_attn_layer_norm(hidden)))
            hidden = hidden + linear(cross.out_proj, mixed.flatten(1))
            inner = layer.activation_fn(linear(layer.fc1, layer.final_layer_norm(hidden)))
            hidden = hidden + linear(layer.fc2, inner)
        ended: torch.Tensor = decoder.layer_norm(hidden)
        return ended

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 [N, V] of hidden states [N, H]."""
        return self.arithmetic.linear(self.module.proj_out, hidden).float()

    def _query(self, attention: Any, normed: torch.Tensor) -> torch.Tensor:
        """Return [T, heads, head size], scaled before they are split up, as transformers does."""
        return _by_head(self.arithmetic.linear(attention.q_proj, normed) * attention.scaling, attention)

    def _long(self, numbers: list[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self.device)


def _by_head(projected: torch.Tensor, attention: Any) -> torch.Tensor:
    return projected.view(len(projected), attention.num_heads, attention.head_dim)
