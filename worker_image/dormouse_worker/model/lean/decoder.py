"""The forward pass of Llama and its kin over a packed batch. Knows weights and attention, not where they come from.

What it saves against transformers' modules: one matrix product where there were three (query, key, value) or two
(gate, up), one rotation for queries and keys together, no masks, no cache objects, no module calls; and the last
layer computes only the rows whose logits somebody asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from dormouse_worker.model.adapters.rows import Lora
from dormouse_worker.model.context import AttentionCall, current_adapters, current_communicator, current_context
from dormouse_worker.model.parallel.communicator import Communicator
from dormouse_worker.model.parallel.layers import gather_logits, locate_tokens, merge_embedded, row_linear
from dormouse_worker.model.parallel.shards import Vocabulary
from dormouse_worker.model.quantized.formats import Format
from dormouse_worker.model.vision.placed import Seen

Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # queries [T, Hq, D], keys and values [T, Hkv, D]


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear map; the weight is [out, in]."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    lora: Lora | None = None  # what adapters have for it; None = none can
    scale: torch.Tensor | None = None  # [out] of a weight of fewer bits
    format: Format | None = None  # of such a weight

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [T, out] for [T, in]."""
        return self._adapted(functional.linear(*self._operands(rows), self.bias), rows)

    def reduced(self, rows: torch.Tensor, group: Communicator) -> torch.Tensor:
        """Return [T, out] where this rank has some columns of [T, in], the others the rest."""
        return row_linear(*self._operands(rows), self.bias, group, adapt=lambda out: self._adapted(out, rows))

    def _adapted(self, out: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        adapters = None if self.lora is None else current_adapters()
        return out if adapters is None or self.lora is None else adapters.add(out, rows, self.lora)

    def _operands(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what is multiplied: a weight of fewer bits is expanded, and may lie rotated."""
        if self.format is None or self.scale is None:
            return rows, self.weight
        return self.format.operands(rows, self.weight, self.scale)


@dataclass(frozen=True, slots=True)
class Embedding:
    """A vector [H] for each token; the weight is [V, H], or the rank's rows of it."""

    weight: torch.Tensor
    dtype: torch.dtype
    size: int  # H
    scale: torch.Tensor | None = None  # [V] of a weight of fewer bits
    format: Format | None = None  # of such a weight

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return [T, H] for [T]."""
        found = functional.embedding(token_ids, self.weight)
        if self.format is None or self.scale is None:
            return found
        return self.format.dequantize(found, self.scale[token_ids], self.size).to(self.dtype)


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """A norm over the last dimension, computed in float32."""

    weight: torch.Tensor
    eps: float

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the same shape."""
        return functional.rms_norm(rows, self.weight.shape, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class Angles:
    """A pass's rotary embedding: cosines and sines [T, 1, D], the first half of the sines negated.

    With halves (a, b) of a head, the rotated head is (a · cos - b · sin, b · cos + a · sin): the head times the
    cosines, plus the head with its halves swapped times the signed sines.
    """

    cos: torch.Tensor
    signed_sin: torch.Tensor

    def rotate(self, heads: torch.Tensor) -> torch.Tensor:
        """Return [T, H, D] for [T, H, D]."""
        swapped = heads.roll(heads.shape[-1] // 2, -1)
        return torch.addcmul(heads * self.cos, swapped, self.signed_sin)


@dataclass(frozen=True, slots=True)
class Rotary:
    """The frequencies [D / 2] in float32, and what a scaled embedding multiplies cosines and sines by."""

    inv_freq: torch.Tensor
    attention_factor: float
    axes: torch.Tensor | None = None  # [D / 2] uint8: time, height or width, by which each turns; None = by all alike

    def angles(self, positions: torch.Tensor, dtype: torch.dtype) -> Angles:
        """Return the angles of positions [T], or [3, T] in time, height and width."""
        if positions.dim() == 1:
            by_frequency = positions[:, None]
        else:
            assert self.axes is not None, "positions have axes only where the embedding does"
            by_frequency = positions[self.axes.long()].T
        freqs = by_frequency.float() * self.inv_freq
        cos = (freqs.cos() * self.attention_factor).to(dtype)
        sin = (freqs.sin() * self.attention_factor).to(dtype)
        return Angles(torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None])


@dataclass(frozen=True, slots=True)
class Attention:
    """One layer's attention block. Rows of `qkv`: Hq query heads, Hkv key heads, Hkv value heads, D each."""

    call: AttentionCall
    num_heads: int
    num_kv_heads: int
    norm: RMSNorm
    qkv: Linear
    head_norms: tuple[RMSNorm, RMSNorm] | None  # of query and key heads
    output: Linear

    def make_heads(self, hidden: torch.Tensor, angles: Angles) -> Heads:
        """Return what is attended with."""
        num_rotated = self.num_heads + self.num_kv_heads
        heads = self.qkv(self.norm(hidden)).view(len(hidden), num_rotated + self.num_kv_heads, -1)
        rotated = angles.rotate(self._normed(heads[:, :num_rotated]))
        return rotated[:, : self.num_heads], rotated[:, self.num_heads :], heads[:, num_rotated:]

    def _normed(self, heads: torch.Tensor) -> torch.Tensor:
        if self.head_norms is None:
            return heads
        query_norm, key_norm = self.head_norms
        return torch.cat((query_norm(heads[:, : self.num_heads]), key_norm(heads[:, self.num_heads :])), 1)


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """One layer's feed-forward block. Rows of `gate_up`: the gate's, then the other half's."""

    norm: RMSNorm
    gate_up: Linear
    down: Linear

    def __call__(self, hidden: torch.Tensor, group: Communicator) -> torch.Tensor:
        """Return [T, hidden size] for the same."""
        gate, up = self.gate_up(self.norm(hidden)).chunk(2, -1)
        return self.down.reduced(functional.silu(gate) * up, group)


@dataclass(frozen=True, slots=True)
class Layer:
    """An attention block and a feed-forward block, each added to what came in."""

    attention: Attention
    mlp: GatedMLP

    @property
    def maps(self) -> tuple[Linear, ...]:
        """Return its linear maps."""
        return self.attention.qkv, self.attention.output, self.mlp.gate_up, self.mlp.down

    def finish(self, hidden: torch.Tensor, attended: torch.Tensor, group: Communicator) -> torch.Tensor:
        """Return the next layer's [T, hidden size]; `attended`, [T, Hq · D], is what the heads brought."""
        hidden = hidden + self.attention.output.reduced(attended, group)
        return hidden + self.mlp(hidden, group)


@dataclass(frozen=True, slots=True)
class LayerParts:
    """Who computes what of a layer comes before and after attention."""

    make_heads: Callable[[Layer, torch.Tensor, Angles], Heads]
    finish: Callable[[Layer, torch.Tensor, torch.Tensor, Communicator], torch.Tensor]
    compiled_sizes: tuple[int, ...] = ()  # tokens of the passes for which both were compiled


EAGER = LayerParts(lambda layer, hidden, angles: layer.attention.make_heads(hidden, angles), Layer.finish)


@dataclass(frozen=True, slots=True)
class LeanDecoder:
    """A model, or what one rank has of it. Its tensors are views of those that transformers loaded, see `build`."""

    embedding: Embedding | None  # None = another stage embeds
    rotary: Rotary
    layers: Sequence[Layer]
    norm: RMSNorm | None  # None = another stage computes logits
    head: Linear | None
    vocabulary: Vocabulary | None = None  # the rank's part of embedding and head; None = it has all
    parts: LayerParts = EAGER

    def __repr__(self) -> str:
        return f"LeanDecoder({len(self.layers)} layers)"

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        rows: torch.Tensor,
        seen: Seen | None = None,
    ) -> torch.Tensor:
        """Return logits [len(rows), V] of a packed batch [T] within a forward context; no rows, no logits.

        `seen` is what it begins with; None = the embedded tokens.

        Where another stage computes the logits, the hidden states are sent to the next one, and it is [0, hidden size].
        """
        context, group, adapters = current_context(), current_communicator(), current_adapters()
        hidden = self._begin(token_ids, group) if seen is None else seen.embedded
        deep = iter(() if seen is None or seen.deep is None else seen.deep)
        angles = self.rotary.angles(positions, hidden.dtype)
        for layer in self.layers:
            heads = self.parts.make_heads(layer, hidden, angles)
            attended = context.attend(layer.attention.call, *heads).reshape(len(hidden), -1)
            if self.head is not None and layer is self.layers[-1]:  # its keys and values are stored: the other rows
                attended, hidden = attended[rows], hidden[rows]  # have done their part
                if adapters is not None:
                    adapters.keep_wanted()
            hidden = self.parts.finish(layer, hidden, attended, group)
            if (added := next(deep, None)) is not None:
                hidden = hidden + added
        return self._end(hidden, group)

    def _begin(self, token_ids: torch.Tensor, group: Communicator) -> torch.Tensor:
        if self.embedding is None:
            norm = self.layers[0].attention.norm.weight
            return group.receive(norm.new_empty(len(token_ids), len(norm)))
        if self.vocabulary is None:
            return self.embedding(token_ids)
        ids, is_elsewhere = locate_tokens(token_ids, self.vocabulary)
        return merge_embedded(self.embedding(ids), is_elsewhere, group)

    def _end(self, hidden: torch.Tensor, group: Communicator) -> torch.Tensor:
        if self.head is None or self.norm is None:
            group.send(hidden)
            return hidden[:0]
        logits = self.head(self.norm(hidden))
        return logits if self.vocabulary is None else gather_logits(logits, self.vocabulary, group)
