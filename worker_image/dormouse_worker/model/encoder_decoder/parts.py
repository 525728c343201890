"""The decoders of the T5 and BART kinds as the same few parts, whatever transformers calls them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

_NORM_FIRST: Mapping[str, bool] = MappingProxyType(
    {"bart": False, "blenderbot": True, "marian": False, "mbart": True, "pegasus": True, "plbart": False}
)  # of the BART kinds: whether a norm stands before its block, or behind the sum
_SCALED: Mapping[str, Callable[[Any], bool]] = MappingProxyType(
    {
        "mt5": lambda _: False,
        "t5": lambda config: config.scale_decoder_outputs,
        "umt5": lambda config: config.tie_word_embeddings,
    }
)  # of the T5 kinds: whether hidden states are scaled before the head, as transformers decides it
KINDS = (*sorted((*_NORM_FIRST, *_SCALED)),)  # model types

Norm = Callable[[torch.Tensor], torch.Tensor]
Map = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Attention:
    """The maps of one attention, its heads, and what scores are multiplied by."""

    query: Map
    key: Map
    value: Map
    out: Map
    num_heads: int
    head_size: int
    scale: float

    def by_head(self, projected: torch.Tensor) -> torch.Tensor:
        """Return [T, heads, head_size] of [T, heads × head_size]."""
        return projected.view(len(projected), self.num_heads, self.head_size)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a decoder. `own` attends to the decoder's tokens, `cross` to what the encoder made."""

    own: Attention
    own_norm: Norm
    cross: Attention
    cross_norm: Norm
    feed: Map  # with its norm and residual
    norm_first: bool
    bias: Any | None  # transformers' attention, which knows a bias for each distance; None = the layer before says it

    def around(self, hidden: torch.Tensor, norm: Norm, inner: Map) -> torch.Tensor:
        """Return hidden states behind a block that has a norm and a residual."""
        return hidden + inner(norm(hidden)) if self.norm_first else norm(hidden + inner(hidden))


@dataclass(frozen=True, slots=True)
class Decoder:
    """What surrounds the layers, and the head."""

    layers: Sequence[Layer]
    embed: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # token ids and positions [T] → [T, H]
    finish: Map  # [T, H] → [T, H]
    score: Map  # [N, H] → logits [N, V]


def decoder_of(module: Any) -> Decoder:
    """Return the parts of a loaded model whose `model_type` is one of KINDS."""
    return _t5(module) if module.config.model_type in _SCALED else _bart(module)


def relative_bias(attention: Any, num_before: int, num_queries: int) -> torch.Tensor:
    """Return [heads, queries, keys] of queries behind so many tokens, by transformers' own arithmetic."""
    device = attention.relative_attention_bias.weight.device
    bias: torch.Tensor = attention.compute_bias(num_queries, num_before + num_queries, device, num_before)[0]
    return bias


def _t5(module: Any) -> Decoder:
    stack, scale = module.decoder, module.config.d_model**-0.5
    is_scaled = _SCALED[module.config.model_type](module.config)

    def score(hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = module.lm_head(hidden * scale if is_scaled else hidden)
        return logits

    return Decoder(
        layers=[_t5_layer(block) for block in stack.block],
        embed=lambda token_ids, _: stack.embed_tokens(token_ids),
        finish=stack.final_layer_norm,
        score=score,
    )


def _t5_layer(block: Any) -> Layer:
    own, cross, feed = block.layer
    attention = own.SelfAttention
    return Layer(
        own=_t5_attention(attention),
        own_norm=own.layer_norm,
        cross=_t5_attention(cross.EncDecAttention),
        cross_norm=cross.layer_norm,
        feed=feed,
        norm_first=True,
        bias=attention if attention.has_relative_attention_bias else None,
    )


def _t5_attention(attention: Any) -> Attention:
    maps = attention.q, attention.k, attention.v, attention.o
    return Attention(*maps, attention.n_heads, attention.key_value_proj_dim, attention.scaling)


def _bart(module: Any) -> Decoder:
    stack = module.get_decoder()
    scale = getattr(stack, "embed_scale", 1.0)  # others multiply in `embed_tokens`
    first_norm, last_norm = (getattr(stack, name, _same) for name in ("layernorm_embedding", "layer_norm"))
    norm_first = _NORM_FIRST[module.config.model_type]

    def embed(token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        embedded = stack.embed_tokens(token_ids) * scale
        placed = stack.embed_positions(token_ids[None], 0, position_ids=positions).view_as(embedded)
        normed: torch.Tensor = first_norm(embedded + placed)
        return normed

    def score(hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = module.lm_head(hidden) + module.final_logits_bias[0]
        return logits

    layers = [_bart_layer(layer, norm_first=norm_first) for layer in stack.layers]
    return Decoder(layers=layers, embed=embed, finish=last_norm, score=score)


def _bart_layer(layer: Any, *, norm_first: bool) -> Layer:
    def inner(hidden: torch.Tensor) -> torch.Tensor:
        fed: torch.Tensor = layer.fc2(layer.activation_fn(layer.fc1(hidden)))
        return fed

    def feed(hidden: torch.Tensor) -> torch.Tensor:
        return made.around(hidden, layer.final_layer_norm, inner)

    made = Layer(
        own=_bart_attention(layer.self_attn),
        own_norm=layer.self_attn_layer_norm,
        cross=_bart_attention(layer.encoder_attn),
        cross_norm=layer.encoder_attn_layer_norm,
        feed=feed,
        norm_first=norm_first,
        bias=None,
    )
    return made


def _bart_attention(attention: Any) -> Attention:
    maps = attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj
    return Attention(*maps, attention.num_heads, attention.head_dim, attention.scaling)


def _same(hidden: torch.Tensor) -> torch.Tensor:
    return hidden
