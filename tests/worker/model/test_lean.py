"""Our own forward pass gives what transformers' gives, with the same weights, and steps aside where it would not."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.attention.hook import DiscoveryContext
from dormouse_worker.model.context import forward_context
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.lean.build import FAMILY, build_lean
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.model.loader import load
from dormouse_worker.model.testing import ARCHITECTURES, VOCAB_SIZE, write_tiny_model

CPU = CpuDevice(Host())
LEAN = ["cwm", "llama", "ministral", "mistral", "qwen2", "qwen3"]
TOKENS = torch.tensor([(i * i * 7 + 3 * i + 5) % 250 for i in range(40)])
POSITIONS = torch.arange(len(TOKENS))
VARIANTS = {
    "one key head": ("llama", {"num_key_value_heads": 1}),
    "as many key heads as queries": ("llama", {"num_key_value_heads": 4}),
    "biases everywhere": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "tied embeddings": ("llama", {"tie_word_embeddings": True}),
    "heads wider than their share": ("mistral", {"head_dim": 16}),
    "no window": ("mistral", {"sliding_window": None}),
    "windows in the upper layers": ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "biases beside head norms": ("qwen3", {"attention_bias": True}),
    "stretched frequencies": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "frequencies for longer sequences only": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "a frequency for each pair, and others beyond the limit": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0, 1.5, 2.0, 2.5],
                "long_factor": [4.0] * 4,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "scaled cosines": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "attention_factor": 1.5,
            }
        },
    ),
}


class OneSequence:
    """Attends within a pass that holds one sequence from its start; remembers the calls."""

    def __init__(self):
        self.calls = []

    def attend(self, call, query, key, value):
        self.calls.append(call)
        distance = POSITIONS[:, None] - POSITIONS[None, :]
        mask = (distance >= 0) & (distance < (call.window or len(POSITIONS)))
        query, key, value = (rows.transpose(0, 1) for rows in (query, key, value))
        attended = scaled_dot_product_attention(query, key, value, mask, scale=call.scale, enable_gqa=True)
        return attended.transpose(0, 1)


@pytest.fixture
def load_tiny(tmp_path, tiny_model):
    """Return a function (architecture, fields of its configuration, settings) → loaded model."""

    def load_one(architecture, fields=None, **settings):
        directory = write_tiny_model(tmp_path, architecture, **fields) if fields else tiny_model(architecture)
        return load(EngineSettings(model=str(directory), **settings), CPU)

    return load_one


def both_ways(model, rows=POSITIONS):
    """Return logits and calls of our pass and of transformers', over the weights of one load."""
    results = []
    for forward in (model.lean.forward, lambda *batch: transformers_logits(model, *batch)):
        context = OneSequence()
        with torch.inference_mode(), forward_context(context):
            results.append((forward(TOKENS, POSITIONS, rows), context.calls))
    return results


def transformers_logits(model, token_ids, positions, rows):
    output = model.module(input_ids=token_ids[None], position_ids=positions[None], use_cache=False, logits_to_keep=rows)
    return output.logits[0]


def assert_the_same(model):
    (ours, our_calls), (theirs, their_calls) = both_ways(model)
    assert theirs.std() > 0.5  # else closeness would say nothing
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert our_calls == their_calls


@pytest.mark.parametrize("architecture", LEAN)
def test_the_logits_are_those_of_transformers(load_tiny, architecture):
    assert_the_same(load_tiny(architecture))


@pytest.mark.parametrize(("architecture", "fields"), VARIANTS.values(), ids=VARIANTS)
def test_the_logits_are_those_of_transformers_in_every_variant(load_tiny, architecture, fields):
    assert_the_same(load_tiny(architecture, fields))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("architecture", LEAN)
def test_in_half_precision_it_is_about_as_near_to_the_truth(load_tiny, architecture, dtype):
    half = load_tiny(architecture, dtype=dtype)
    (ours, _), (theirs, _) = both_ways(half)
    (truth, _), _ = both_ways(load_tiny(architecture))
    assert ours.dtype == half.module.dtype
    assert (ours - truth).norm() < 2 * (theirs - truth).norm()


def test_only_the_rows_asked_for_are_answered_in_their_order(load_tiny):
    model = load_tiny("llama")
    (everything, _), _ = both_ways(model)
    for rows in (torch.tensor([7, 3, 39]), torch.tensor([], dtype=torch.long)):
        (ours, _), _ = both_ways(model, rows)
        torch.testing.assert_close(ours, everything[rows], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("architecture", LEAN)
def test_no_weight_is_held_twice(load_tiny, architecture):
    lean, plain = load_tiny(architecture), load_tiny(architecture, model_impl="transformers")
    assert (lean.impl, plain.impl) == ("lean", "transformers")
    assert lean.weights_bytes == plain.weights_bytes
    assert lean.info.num_parameters == plain.info.num_parameters
    own = {tensor.untyped_storage().data_ptr() for tensor in (*lean.module.parameters(), *lean.module.buffers())}
    layer = lean.lean.layers[0]
    used = (lean.lean.embedding.weight, lean.lean.head.weight, lean.lean.rotary.inv_freq, layer.attention.qkv.weight)
    assert {tensor.untyped_storage().data_ptr() for tensor in (*used, layer.mlp.gate_up.weight)} <= own


def test_the_modules_own_projections_are_views_of_the_joined_ones(load_tiny):
    model = load_tiny("qwen2")
    attention, joined = model.module.model.layers[1].self_attn, model.lean.layers[1].attention.qkv
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    assert torch.equal(torch.cat([part.weight for part in parts]), joined.weight)
    assert torch.equal(torch.cat([part.bias for part in parts]), joined.bias)
    joined.weight.fill_(7)
    assert all((part.weight == 7).all() for part in parts)


def test_discovery_through_it_finds_the_same_cache(load_tiny):
    model = load_tiny("ministral", block_size=4)
    context = DiscoveryContext()
    with torch.inference_mode(), forward_context(context):
        logits = model.compute_logits(TOKENS[:1], POSITIONS[:1], POSITIONS[:1])
    assert logits.shape == (1, VOCAB_SIZE)
    assert tuple(context.layers[layer] for layer in range(3)) == model.cache_spec.layers
    assert [context.calls[layer].window for layer in range(3)] == [8, 8, None]


def test_every_class_of_the_family_is_tested(load_tiny):
    assert {type(load_tiny(architecture).module).__name__ for architecture in LEAN} == FAMILY


@pytest.mark.parametrize("architecture", sorted(set(ARCHITECTURES) - set(LEAN)))
def test_other_architectures_keep_the_pass_of_transformers(load_tiny, architecture):
    assert load_tiny(architecture).impl == "transformers"


def test_who_insists_on_it_for_another_architecture_is_told_why_not(load_tiny):
    with pytest.raises(InvalidSettings, match=r"model_impl is lean.*: GPT2LMHeadModel is not one of .*; use auto"):
        load_tiny("gpt2", model_impl="lean")


class ScaledLinear(nn.Linear):
    """Looks like a linear map and is none: a quantized or adapted one would."""


def replace_projection(module):
    module.model.layers[1].mlp.down_proj.__class__ = ScaledLinear


def add_a_part(module):
    module.model.layers[0].self_attn.gate = nn.Linear(2, 2)


def drop_a_bias(module):
    module.model.layers[1].self_attn.k_proj.bias = None


def replace_activation(module):
    module.model.layers[0].mlp.act_fn = nn.GELU()


def replace_norm(module):
    module.model.norm = nn.LayerNorm(32)


def replace_inner_norm(module):
    module.model.layers[0].input_layernorm = nn.LayerNorm(32)


def replace_embedding(module):
    module.model.embed_tokens = nn.EmbeddingBag(VOCAB_SIZE, 32)


def replace_head(module):
    module.lm_head = ScaledLinear(32, VOCAB_SIZE)


def rotate_half_of_each_head(module):
    module.model.rotary_emb.inv_freq = module.model.rotary_emb.inv_freq[:2]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (replace_projection, "layer 1: down_proj is a ScaledLinear"),
        (add_a_part, "layer 0: Qwen2Attention consists of gate, k_proj"),
        (drop_a_bias, "layer 1: projections to be joined differ"),
        (replace_activation, "layer 0: the activation is GELU, not SiLU"),
        (replace_norm, "norm is a LayerNorm"),
        (replace_inner_norm, "layer 0: input_layernorm is a LayerNorm"),
        (replace_embedding, "embed_tokens is a EmbeddingBag"),
        (replace_head, "lm_head is a ScaledLinear"),
        (rotate_half_of_each_head, "layer 0: 4 of 8 numbers of a head are rotated"),
    ],
)
def test_a_module_that_is_not_what_it_computes_is_named(load_tiny, change, reason):
    model = load_tiny("qwen2", model_impl="transformers")
    change(model.module)
    before = model.weights_bytes
    unfit = build_lean(model.module, {})
    assert isinstance(unfit, Unfit)
    assert unfit.reason.startswith(reason)
    assert model.weights_bytes == before
