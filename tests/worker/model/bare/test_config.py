"""Only a configuration of which every word is known is read without transformers."""

from __future__ import annotations

import json

import pytest

from dormouse_worker.model.bare.config import FAMILIES, BareConfig, read_config
from dormouse_worker.model.lean.unfit import Unfit

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 260,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "torch_dtype": "bfloat16",
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
MISTRAL = {**LLAMA, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None}
QWEN3 = {**LLAMA, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 16}


def without(config, name):
    return {key: value for key, value in config.items() if key != name}


def test_older_files_say_the_same_as_newer_ones():
    newer = {**without(LLAMA, "rope_theta"), "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}
    assert read_config(LLAMA) == read_config(newer)
    assert read_config(LLAMA).head_dim == 8
    scaled = {**without(LLAMA, "rope_theta"), "rope_parameters": {**LLAMA3, "rope_theta": 10000}}
    assert read_config({**LLAMA, "rope_scaling": LLAMA3}) == read_config(scaled)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_what_transformers_writes_of_each_family_is_read(model_of, architecture):
    config = json.loads((model_of(architecture) / "config.json").read_text())
    found = read_config(config)
    assert isinstance(found, BareConfig), found
    assert found.has_biases is (architecture == "qwen2")
    assert found.has_head_norms is (architecture == "qwen3")
    assert found.sliding_window == (8 if architecture == "mistral" else None)


PUBLISHED = {  # what files of the hub say beside the sizes
    "SmolLM2": LLAMA
    | {"is_llama_config": True, "rope_interleaved": False, "rope_scaling": None, "transformers.js_config": {}}
    | {"attention_bias": False, "attention_dropout": 0.0, "mlp_bias": False, "pretraining_tp": 1},
    "Llama 3.1": LLAMA | {"rope_scaling": LLAMA3, "rope_theta": 500000.0, "max_position_embeddings": 131072},
    "TinyLlama": LLAMA | {"bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "tie_word_embeddings": False},
    "Qwen2.5": LLAMA
    | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "max_window_layers": 24}
    | {"sliding_window": 32768, "use_sliding_window": False, "use_cache": True},
    "Qwen3": QWEN3 | {"attention_bias": False, "rope_scaling": None, "sliding_window": None, "max_window_layers": 28},
    "Mistral": MISTRAL | {"eos_token_id": 2, "initializer_range": 0.02, "transformers_version": "4.34.0.dev0"},
}


@pytest.mark.parametrize("config", PUBLISHED.values(), ids=PUBLISHED)
def test_what_the_hubs_files_say_is_known(config):
    assert isinstance(read_config(config), BareConfig)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({**LLAMA, "model_type": "gpt2"}, "describes no LlamaForCausalLM or"),
        ({**LLAMA, "model_type": 7}, "describes no"),
        ({**LLAMA, "architectures": ["LlamaForSequenceClassification"]}, "describes no"),
        ({**LLAMA, "router_aux_loss_coef": 0.1}, "says router_aux_loss_coef, which is not known here"),
        ({**LLAMA, "quantization_config": {}}, "quantization_config"),
        ({**LLAMA, "attention_bias": True}, "attention_bias is True"),
        ({**LLAMA, "mlp_bias": True}, "mlp_bias is True"),
        ({**LLAMA, "hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({**LLAMA, "rope_scaling": {"rope_type": "llama3"}}, "factor is None"),
        ({**LLAMA, "rope_scaling": LLAMA3 | {"factor": float("nan")}}, "factor is nan"),
        (
            {**LLAMA, "rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}},
            "high_freq_factor is not above low_freq_factor",
        ),
        ({**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0}}, "no rotary embedding of type"),
        ({**LLAMA, "rope_scaling": "linear"}, "rope_theta is None"),
        ({**LLAMA, "rope_scaling": LLAMA3, "rope_parameters": {"rope_theta": 1e4}}, "rope_theta is None"),
        ({**LLAMA, "rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn"}}, "no rotary embedding of type"),
        ({**LLAMA, "rope_parameters": {"rope_theta": 1e4, "rope_type": ["linear"]}}, "no rotary embedding of type"),
        ({**LLAMA, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "no rotary embedding of"),
        ({**LLAMA, "rope_parameters": [1]}, "rope_theta is None"),
        (without(LLAMA, "rope_theta"), "rope_theta is None"),
        (without(LLAMA, "num_key_value_heads"), "has no num_key_value_heads"),
        (without(LLAMA, "rms_norm_eps"), "has no rms_norm_eps"),
        (without(MISTRAL, "sliding_window"), "has no sliding_window"),
        (without(QWEN3, "head_dim"), "has no head_dim"),
        ({**QWEN3, "use_sliding_window": True}, "use_sliding_window is True"),
        ({**QWEN3, "layer_types": ["sliding_attention", "full_attention"]}, "attend in several ways"),
        ({**MISTRAL, "sliding_window": 0}, "sliding_window is 0"),
        ({**LLAMA, "hidden_size": "32"}, "hidden_size is '32'"),
        ({**LLAMA, "num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({**LLAMA, "rms_norm_eps": "1e-6"}, "rms_norm_eps is '1e-6'"),
        ({**LLAMA, "rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({**LLAMA, "rms_norm_eps": 10**400}, "rms_norm_eps is 1000"),
        ({**LLAMA, "rope_theta": 10**400}, "rope_theta is 1000"),
        ({**LLAMA, "rope_theta": 5e-324}, "rope_theta is 5e-324"),
        ({**LLAMA, "layer_types": 5}, "attend in several ways"),
        ({**LLAMA, "layer_types": [[]]}, "attend in several ways"),
        ({**LLAMA, "head_dim": 7}, "heads have 7 numbers"),
        ({**LLAMA, "head_dim": 512}, "heads have 512 numbers"),
        ({**LLAMA, "num_attention_heads": 5, "head_dim": 8}, "cannot share key heads evenly"),
    ],
)
def test_whatever_is_not_known_is_transformers_to_read(config, reason):
    found = read_config(config)
    assert isinstance(found, Unfit)
    assert reason in found.reason
