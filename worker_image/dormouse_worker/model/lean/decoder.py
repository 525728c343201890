"""The forward pass of Llama and its kin over a packed batch. Knows weights and attention, not where they come from.

What it saves against transformers' modules: one matrix product where there were three (query, key, value) or two
(gate, up), one rotation for queries and keys together, no masks, no cache objects, no module calls; and the last
layer computes only the rows whose logits somebody asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from dormouse_worker.model.context import current_adapters, current_communicator, current_context
from dormouse_worker.model.lean.parts import Attention, Decoder, Embedding, GatedMLP, Layer, Linear, RMSNorm, Rotary
from dormouse_worker.model.parallel.communicator import Communicator
from dormouse_worker.model.parallel.layers import gather_logits, locate_tokens, merge_embedded, row_linear
from dormouse_worker.model.quantized.rounding import Rounding
from dormouse_worker.model.states import KeptStates
from dormouse_worker.model.vision.placed import Seen

Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # queries [T, Hq, D], keys and values [T, Hkv, D]


def multiply(linear: Linear, rows: torch.Tensor) -> torch.Tensor:
    """Return [T, out] for [T, in]."""
    return _adapted(linear, functional.linear(*_operands(linear, rows), linear.bias), rows)


def multiply_reduced(linear: Linear, rows: torch.Tensor, group: Communicator) -> torch.Tensor:
    """Return [T, out] where this rank has some columns of [T, in], the others the rest."""
    return row_linear(*_operands(linear, rows), linear.bias, group, adapt=lambda out: _adapted(linear, out, rows))


def _adapted(linear: Linear, out: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    adapters = None if linear.lora is None else current_adapters()
    return out if adapters is None or linear.lora is None else adapters.add(out, rows, linear.lora)


def _operands(linear: Linear, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what is multiplied: a weight of fewer bits is expanded, and may lie rotated."""
    if linear.format is None or linear.scale is None:
        return rows, linear.weight
    assert not isinstance(linear.format, Rounding), "who has no torch has no such decoder"
    return linear.format.operands(rows, linear.weight, linear.scale)


def embed(embedding: Embedding, token_ids: torch.Tensor) -> torch.Tensor:
    """Return [T, H] for [T]."""
    found = functional.embedding(token_ids, embedding.weight)
    if embedding.format is None or embedding.scale is None:
        return found
    assert not isinstance(embedding.format, Rounding), "who has no torch has no such decoder"
    return embedding.format.dequantize(found, embedding.scale[token_ids], embedding.size).to(embedding.dtype)


def normed(norm: RMSNorm | None, rows: torch.Tensor) -> torch.Tensor:
    """Return the same shape; None = the rows as they are."""
    return rows if norm is None else functional.rms_norm(rows, norm.weight.shape, norm.weight, norm.eps)


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


def angles_of(rotary: Rotary, positions: torch.Tensor, dtype: torch.dtype) -> Angles:
    """Return the angles of positions [T], or [3, T] in time, height and width."""
    if positions.dim() == 1:
        by_frequency = positions[:, None]
    else:
        assert rotary.axes is not None, "positions have axes only where the embedding does"
        by_frequency = positions[rotary.axes.long()].T
    freqs = by_frequency.float() * rotary.inv_freq
    cos = (freqs.cos() * rotary.attention_factor).to(dtype)
    sin = (freqs.sin() * rotary.attention_factor).to(dtype)
    return Angles(torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None])


def make_heads(layer: Layer, hidden: torch.Tensor, angles: Angles, beside: torch.Tensor | None = None) -> Heads:
    """Return what a layer attends with; `beside`, [T, H], stands before each row where it reads both."""
    attention = layer.attention
    num_rotated = attention.num_heads + attention.num_kv_heads
    rows = normed(attention.norm, hidden)
    if beside is not None:
        rows = torch.cat((normed(attention.beside_norm, beside), rows), -1)
    heads = multiply(attention.qkv, rows)
    heads = heads.view(len(hidden), num_rotated + attention.num_kv_heads, -1)
    rotated = angles.rotate(_normed_heads(attention, heads[:, :num_rotated]))
    return rotated[:, : attention.num_heads], rotated[:, attention.num_heads :], heads[:, num_rotated:]


def _normed_heads(attention: Attention, heads: torch.Tensor) -> torch.Tensor:
    if attention.head_norms is None:
        return heads
    query_norm, key_norm = attention.head_norms
    query, key = heads[:, : attention.num_heads], heads[:, attention.num_heads :]
    return torch.cat((normed(query_norm, query), normed(key_norm, key)), 1)


def finish(layer: Layer, hidden: torch.Tensor, attended: torch.Tensor, group: Communicator) -> torch.Tensor:
    """Return the next layer's [T, hidden size]; `attended`, [T, Hq · D], is what the heads brought."""
    hidden = hidden + multiply_reduced(layer.attention.output, attended, group)
    return hidden + _feed_forward(layer.mlp, hidden, group)


def _feed_forward(mlp: GatedMLP, hidden: torch.Tensor, group: Communicator) -> torch.Tensor:
    gate, up = multiply(mlp.gate_up, normed(mlp.norm, hidden)).chunk(2, -1)
    return multiply_reduced(mlp.down, functional.silu(gate) * up, group)


@dataclass(frozen=True, slots=True)
class LayerParts:
    """Who computes what of a layer comes before and after attention."""

    make_heads: Callable[[Layer, torch.Tensor, Angles], Heads]
    finish: Callable[[Layer, torch.Tensor, torch.Tensor, Communicator], torch.Tensor]
    compiled_sizes: tuple[int, ...] = ()  # tokens of the passes for which both were compiled


EAGER = LayerParts(make_heads, finish)


@dataclass(frozen=True, slots=True, repr=False)
class LeanDecoder(Decoder):
    """A decoder that torch computes. Its tensors are views of those that transformers loaded, see `build`."""

    parts: LayerParts = EAGER

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        rows: torch.Tensor,
        seen: Seen | None = None,
        states: KeptStates | None = None,
    ) -> torch.Tensor:
        """Return logits [len(rows), V] of a packed batch [T] within a forward context; no rows, no logits.

        `seen` is what it begins with; None = the embedded tokens. `states` keeps those of all rows, of one rank alone.

        Where another stage computes the logits, the hidden states are sent to the next one, and it is [0, hidden size].
        """
        context, group, adapters = current_context(), current_communicator(), current_adapters()
        hidden = self._begin(token_ids, group) if seen is None else seen.embedded
        deep = iter(() if seen is None or seen.deep is None else seen.deep)
        angles = angles_of(self.rotary, positions, hidden.dtype)
        for depth, layer in enumerate(self.layers):
            if states is not None:
                states.pass_by(depth, hidden)
            heads = self.parts.make_heads(layer, hidden, angles)
            attended = context.attend(layer.attention.call, *heads).reshape(len(hidden), -1)
            if self.head is not None and layer is self.layers[-1] and states is None:
                attended, hidden = attended[rows], hidden[rows]  # the other rows' keys and values are stored: they
                if adapters is not None:  # have done their part
                    adapters.keep_wanted()
            hidden = self.parts.finish(layer, hidden, attended, group)
            if (added := next(deep, None)) is not None:
                hidden = hidden + added
        return self._end(hidden, group) if states is None else self._end_with(states, hidden, rows)

    def _begin(self, token_ids: torch.Tensor, group: Communicator) -> torch.Tensor:
        if self.embedding is None:
            norm = self.layers[0].mlp.norm.weight
            return group.receive(norm.new_empty(len(token_ids), len(norm)))
        if self.vocabulary is None:
            return embed(self.embedding, token_ids)
        ids, is_elsewhere = locate_tokens(token_ids, self.vocabulary)
        return merge_embedded(embed(self.embedding, ids), is_elsewhere, group)

    def _end(self, hidden: torch.Tensor, group: Communicator) -> torch.Tensor:
        if self.head is None or self.norm is None:
            group.send(hidden)
            return hidden[:0]
        logits = multiply(self.head, normed(self.norm, hidden))
        return logits if self.vocabulary is None else gather_logits(logits, self.vocabulary, group)

    def _end_with(self, states: KeptStates, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return the logits of the wanted rows of all."""
        assert self.head is not None, "who reads states is beside one rank"
        states.pass_by(len(self.layers), hidden)
        ended = normed(self.norm, hidden)
        states.end(ended)
        return multiply(self.head, ended[rows])
