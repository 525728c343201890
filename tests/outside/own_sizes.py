"""Sizes that fit each other, of architectures to which those of all others do not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ONE_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_TWO_ROPES = {"sliding_attention": _ONE_ROPE, "full_attention": _ONE_ROPE}
_KINDS = ["sliding_attention", "full_attention"]
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16}  # heads × their size = 2 × 32
_GEMMA = {"vocab_size_per_layer_input": 260, "hidden_size_per_layer_input": 8}
_SHARED = {"num_hidden_layers": 4, "layer_types": _KINDS * 2, "num_kv_shared_layers": 2}
_GEMMA_4 = {**_GEMMA, **_SHARED, "per_layer_config": {"1": {"head_dim": 16}, "3": {"head_dim": 16}}}
_ASSISTANT = {
    **dict.fromkeys(("vocab_size_per_layer_input", "hidden_size_per_layer_input"), 0),
    "num_hidden_layers": 2,
    "layer_types": _KINDS,
    "num_kv_shared_layers": 2,
}
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_DOTS_3 = {
    **_SPECIAL,
    "num_key_value_heads": 4,
    "head_dim": 12,
    "layer_types": ["sliding_attention", "indexed_attention"],
    "mlp_layer_types": ["dense", "sparse"],
    "per_layer_config": None,
    "shared_experts_intermediate_size": 24,
    "index_topk": 4,
    "index_head_dim": 8,
    "index_n_heads": 4,
}
_HYBRID = ["linear_attention", "linear_attention", "hybrid"]

OWN: Mapping[str, Mapping[str, Any]] = {
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "blt": {
        "encoder_hash_byte_group_vocab": 64,
        "global_config": {"hidden_size": 64, "head_dim": 16},
        "use_cache": False,
    },
    "cohere_compass_text": {"rope_parameters": _TWO_ROPES, "layer_types": _KINDS, "num_key_value_heads": 4},
    "dbrx": {
        "n_heads": 4,
        "n_layers": 2,
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dots3_note": {
        "text_config": _DOTS_3,
        "vision_config": {"per_layer_config": None, "adapter_in_dim": 32, "adapter_out_dim": 32},
        "audio_config": {"whisper_adapter_in_dim": 32, "whisper_adapter_out_dim": 32},
    },
    "dots3_note_text": _DOTS_3,
    "emu3": {"text_config": _SPECIAL},
    "gemma3n_text": {
        **_GEMMA,
        **_SHARED,
        "intermediate_size": [48] * 4,
        "activation_sparsity_pattern": [0.95, 0.0] * 2,
    },
    "gemma4": {"text_config": _GEMMA_4},
    "gemma4_assistant": {"text_config": _ASSISTANT, "backbone_hidden_size": 32},
    "gemma4_text": _GEMMA_4,
    "gemma4_unified_assistant": {"text_config": _ASSISTANT, "backbone_hidden_size": 32},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "granitemoehybrid": {**_MAMBA, "layer_types": ["full_attention"] * 2, "shared_intermediate_size": 24},
    "lfm2_moe": {"layer_types": ["full_attention"] * 2, "num_dense_layers": 1},
    "longcat_flash": {"num_key_value_heads": 4, "head_dim": 4, "ffn_hidden_size": 48, "zero_expert_num": 2},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1, "state_size": 16},
    "mllama": {"text_config": {**_SPECIAL, "cross_attention_layers": [1]}},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 16], "attention_head_size": 8},
    "xlm": {"emb_dim": 32, "n_layers": 2, "n_heads": 4, "causal": True},
    "zamba": {
        "num_hidden_layers": 3,
        "layers_block_type": _HYBRID,
        "n_mamba_heads": 2,
        "mamba_dt_rank": 4,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "num_key_value_heads": 4,
    },
    "zamba2": {
        "num_hidden_layers": 3,
        "layers_block_type": _HYBRID,
        "n_mamba_heads": 4,
        "mamba_headdim": 16,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "num_key_value_heads": 4,
        "kv_channels": 8,
        "hybrid_layer_ids": [2],
        "num_query_groups": 4,
        "adapter_rank": 4,
    },
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16, "layer_types": ["hybrid", "hybrid"]},
}


def with_own(fields: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields, with one's own instead of those of the same name; those of a part count within it."""
    merged = dict(fields)
    for name, value in own.items():
        given = merged.get(name)
        merged[name] = with_own(given, value) if isinstance(given, dict) and isinstance(value, Mapping) else value
    return merged
