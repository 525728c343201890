"""Makes a LeanDecoder of a model that transformers loaded, if it is exactly what the decoder computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import nn
from transformers.activations import SiLUActivation

from dormouse_worker.model.context import AttentionCall
from dormouse_worker.model.lean.decoder import LeanDecoder
from dormouse_worker.model.lean.parts import Attention, Embedding, GatedMLP, Layer, Linear, RMSNorm, Rotary
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.model.parallel.shards import Vocabulary
from dormouse_worker.model.parallel.stages import is_here
from dormouse_worker.model.quantized.modules import QuantizedEmbedding, QuantizedLinear, computed_dtype
from dormouse_worker.model.rope_kinds import PARAMETERS
from dormouse_worker.model.rotary import frequencies
from dormouse_worker.model.vision.rope import rope_axes
from dormouse_worker.model.vision.text_part import stands_for, text_part

# Classes whose forward methods were compared with ours; others of the same build multiply, clip or rotate differently,
# which their modules do not show. Who adds one adds it to the tests of `tests/worker/model/test_lean.py`.
FAMILY = frozenset(
    {
        "CwmForCausalLM",
        "LlamaForCausalLM",
        "MinistralForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
    }
)
# The same of language models within those that read images, with the tests of `tests/worker/model/vision/`.
SEEING = frozenset({"Qwen2VLTextForCausalLM", "Qwen2_5_VLTextForCausalLM", "Qwen3VLTextForCausalLM"})
LINEARS, EMBEDDINGS = (nn.Linear, QuantizedLinear), (nn.Embedding, QuantizedEmbedding)
HEAD_NORMS = frozenset({"q_norm", "k_norm"})
PARTS: Mapping[str, frozenset[str]] = {
    "": frozenset({"model", "lm_head"}),
    "model": frozenset({"embed_tokens", "layers", "norm", "rotary_emb"}),
    "layer": frozenset({"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}),
    "self_attn": frozenset({"q_proj", "k_proj", "v_proj", "o_proj"}),
    "mlp": frozenset({"gate_proj", "up_proj", "down_proj", "act_fn"}),
}


def joined_parameters(module: Any) -> list[list[str]]:
    """Return groups of parameters, by name, that must lie behind each other; none if the decoder does not fit."""
    text = text_part(module)
    if next(_misfits(text), None) is not None:
        return []
    groups = [parts for _, layer in _layers(text) for parts in _fused(layer)]
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    weights = [[names[id(part.weight)] for part in parts] for parts in groups]
    biases = [[names[id(part.bias)] for part in parts] for parts in groups if parts[0].bias is not None]
    scales = [[names[id(part.weight_scale)] for part in parts] for parts in groups if _is_quantized(parts[0])]
    return weights + biases + scales


def build_lean(
    module: Any, calls: Mapping[int, AttentionCall], vocabulary: Vocabulary | None = None
) -> LeanDecoder | Unfit:
    """Return the decoder, or why there is none; `calls` is how each layer calls attention, seen in a pass.

    Of a module that was cut for a rank it is the rank's part; `vocabulary` is its part of embedding and head. It
    computes with views of the module's own tensors: no memory is added, and both compute the same after a sleep.
    """
    module = text_part(module)
    reason = next(chain(_misfits(module), _gaps(module)), None)
    if reason is not None:
        return Unfit(reason)
    model = module.model
    return LeanDecoder(
        embedding=_embedding(model.embed_tokens, model) if is_here(model.embed_tokens) else None,
        rotary=_rotary(model.rotary_emb),
        layers=tuple(_layer(layer, calls[i]) for i, layer in _layers(module)),
        norm=_norm(model.norm) if is_here(model.norm) else None,
        head=_linear(module.lm_head) if is_here(module.lm_head) else None,
        vocabulary=vocabulary,
    )


def _layers(module: Any) -> list[tuple[int, Any]]:
    """Return the layers that this rank computes, with their numbers."""
    return [(i, layer) for i, layer in enumerate(module.model.layers) if is_here(layer)]


def _misfits(module: Any) -> Iterator[str]:
    """Yield what differs from the decoder; later checks may rely on what earlier ones would have yielded."""
    name = stands_for(module)
    if name not in FAMILY | SEEING:
        yield f"{name} is not one of {', '.join(sorted(FAMILY | SEEING))}"
    yield from _wrong_parts("", module)
    yield from _wrong_parts("model", module.model)
    if is_here(module.model.embed_tokens) and type(module.model.embed_tokens) not in EMBEDDINGS:
        yield f"embed_tokens is a {type(module.model.embed_tokens).__name__}"
    if is_here(module.lm_head) and type(module.lm_head) not in LINEARS:
        yield f"lm_head is a {type(module.lm_head).__name__}"
    if is_here(module.model.norm):
        yield from _misfits_of_norm("norm", module.model.norm)
    axes = rope_axes(module.model.rotary_emb)
    if axes is not None and len(axes) != len(module.model.rotary_emb.inv_freq):
        yield f"{len(axes)} of {len(module.model.rotary_emb.inv_freq)} frequencies have an axis"
    for i, layer in _layers(module):
        for misfit in _misfits_of_layer(layer, 2 * len(module.model.rotary_emb.inv_freq)):
            yield f"layer {i}: {misfit}"


def _misfits_of_layer(layer: Any, rotated_size: int) -> Iterator[str]:
    yield from _wrong_parts("layer", layer)
    yield from _wrong_parts("self_attn", layer.self_attn, optional=HEAD_NORMS)
    yield from _wrong_parts("mlp", layer.mlp)
    for name, part in (*layer.self_attn.named_children(), *layer.mlp.named_children()):
        if name.endswith("_proj") and type(part) not in LINEARS:
            yield f"{name} is a {type(part).__name__}"
    if layer.self_attn.head_dim != rotated_size:
        yield f"{rotated_size} of {layer.self_attn.head_dim} numbers of a head are rotated"
    if type(layer.mlp.act_fn) not in (nn.SiLU, SiLUActivation):
        yield f"the activation is {type(layer.mlp.act_fn).__name__}, not SiLU"
    for name, part in (*layer.named_children(), *layer.self_attn.named_children()):
        if name.endswith("norm"):
            yield from _misfits_of_norm(name, part)
    for parts in _fused(layer):
        if len({(part.weight.dtype, part.bias is None) for part in parts}) > 1:
            yield "projections to be joined differ in type or in having biases"


def _gaps(module: Any) -> Iterator[str]:
    for i, layer in _layers(module):
        for parts in _fused(layer):
            biases = [part.bias for part in parts if part.bias is not None]
            scales = [part.weight_scale for part in parts if _is_quantized(part)]
            if not all(_are_neighbours(group) for group in ([part.weight for part in parts], biases, scales)):
                yield f"layer {i}: projections to be joined lie apart in memory"


def _are_neighbours(tensors: Sequence[torch.Tensor]) -> bool:
    ends = [tensor.data_ptr() + tensor.nbytes for tensor in tensors]
    return ends[:-1] == [tensor.data_ptr() for tensor in tensors[1:]]


def _wrong_parts(name: str, module: Any, *, optional: frozenset[str] = frozenset()) -> Iterator[str]:
    have = {child for child, _ in module.named_children()}
    if have not in (PARTS[name], PARTS[name] | optional):
        yield f"{type(module).__name__} consists of {', '.join(sorted(have))}"


def _misfits_of_norm(name: str, module: Any) -> Iterator[str]:
    if not type(module).__name__.endswith("RMSNorm") or [key for key, _ in module.named_parameters()] != ["weight"]:
        yield f"{name} is a {type(module).__name__}"


def _fused(layer: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    attention, mlp = layer.self_attn, layer.mlp
    return (attention.q_proj, attention.k_proj, attention.v_proj), (mlp.gate_proj, mlp.up_proj)


def _layer(layer: Any, call: AttentionCall) -> Layer:
    attention = layer.self_attn
    qkv, gate_up = _fused(layer)
    has_head_norms = hasattr(attention, "q_norm")
    return Layer(
        Attention(
            call=call,
            num_heads=attention.q_proj.out_features // attention.head_dim,
            num_kv_heads=attention.k_proj.out_features // attention.head_dim,
            norm=_norm(layer.input_layernorm),
            qkv=_join(qkv),
            head_norms=(_norm(attention.q_norm), _norm(attention.k_norm)) if has_head_norms else None,
            output=_linear(attention.o_proj),
        ),
        GatedMLP(_norm(layer.post_attention_layernorm), _join(gate_up), _linear(layer.mlp.down_proj)),
    )


def _rotary(module: Any) -> Rotary:
    inv_freq = _frequencies(module)
    axes = rope_axes(module)
    return Rotary(
        inv_freq, float(module.attention_scaling), None if axes is None else torch.from_numpy(axes).to(inv_freq.device)
    )


def _frequencies(module: Any) -> torch.Tensor:
    """Return what the module turns by; where its kind is known, rounded alike on every machine."""
    own: torch.Tensor = module.inv_freq.float()
    rope = getattr(module.config, "rope_parameters", None) or {}
    wanted = PARAMETERS.get(rope.get("rope_type", ""))
    if wanted is None or not wanted <= rope.keys() or own.device.type != "cpu":
        return own
    ours = torch.from_numpy(frequencies(rope, 2 * len(own)))
    is_rounded = torch.allclose(ours, own, rtol=1e-6, atol=0) and not torch.equal(ours, own)
    return ours if is_rounded else own


def _norm(module: Any) -> RMSNorm:
    return RMSNorm(module.weight.data, float(module.variance_epsilon))


def _embedding(module: Any, model: Any) -> Embedding:
    found = Embedding(module.weight.data, computed_dtype(model), module.embedding_dim)
    return replace(found, scale=module.weight_scale.data, format=module.format) if _is_quantized(module) else found


def _is_quantized(module: Any) -> bool:
    return isinstance(module, QuantizedLinear | QuantizedEmbedding)


def _linear(module: Any) -> Linear:
    return _join((module,))


def _join(modules: Sequence[Any]) -> Linear:
    """Join maps of one input, neighbours in memory, into one whose output is theirs in a row."""
    biases = [module.bias for module in modules if module.bias is not None]
    scales = [module.weight_scale for module in modules if _is_quantized(module)]
    return Linear(
        _span([module.weight for module in modules]),
        _span(biases) if biases else None,
        scale=_span(scales) if scales else None,
        format=modules[0].format if scales else None,
    )


def _span(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return one view of neighbours in memory, which are joined along their first dimension."""
    first = parameters[0].data
    return first.as_strided((sum(map(len, parameters)), *first.shape[1:]), first.stride())
