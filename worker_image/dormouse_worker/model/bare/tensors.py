"""Which tensors the files of a model that needs no torch have. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dormouse_worker.model.bare.config import BareConfig

EMBEDDING, NORM, HEAD = "model.embed_tokens", "model.norm", "lm_head"
QKV, GATE_UP = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj")


MAPS = (*QKV, "self_attn.o_proj", *GATE_UP, "mlp.down_proj")


def prefix(layer: int) -> str:
    """Return how the names of a layer's tensors begin."""
    return f"model.layers.{layer}."


def shapes_of(config: BareConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of the files, by name."""
    shapes = {f"{EMBEDDING}.weight": (config.vocab_size, config.hidden_size), f"{NORM}.weight": (config.hidden_size,)}
    if not config.tie_word_embeddings:
        shapes[f"{HEAD}.weight"] = (config.vocab_size, config.hidden_size)
    of_layer = layer_shapes(config)
    for layer in range(config.num_hidden_layers):
        shapes |= {prefix(layer) + name: shape for name, shape in of_layer.items()}
    return shapes


def layer_shapes(config: BareConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of a layer, by its name within the layer."""
    return dict(_layer_shapes(config))


def _layer_shapes(config: BareConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    heads, kv_heads = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    for name, size in zip(QKV, (heads, kv_heads, kv_heads), strict=True):
        yield f"{name}.weight", (size, hidden)
        if config.has_biases:
            yield f"{name}.bias", (size,)
    yield "self_attn.o_proj.weight", (hidden, heads)
    for name in GATE_UP:
        yield f"{name}.weight", (inner, hidden)
    yield "mlp.down_proj.weight", (hidden, inner)
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield f"{name}.weight", (hidden,)
    if config.has_head_norms:
        for name in ("self_attn.q_norm", "self_attn.k_norm"):
            yield f"{name}.weight", (config.head_dim,)
