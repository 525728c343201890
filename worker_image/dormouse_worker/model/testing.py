"""Tiny models with random weights, written as ordinary Hugging Face directories. For tests of every part."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

from dormouse_worker.model.testing_reference import read_reference

VOCAB_SIZE = 260  # 256 bytes and 4 special tokens
BOS, EOS, USER, ASSISTANT = 256, 257, 258, 259
SPECIAL_TOKENS = ("<s>", "</s>", "<|user|>", "<|assistant|>")
MAX_POSITIONS = 128
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

_DECODER: Mapping[str, Any] = MappingProxyType(
    {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": MAX_POSITIONS,
        "initializer_range": 0.3,
        "pad_token_id": None,
    }
)
_GPT2: Mapping[str, Any] = MappingProxyType(
    {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": MAX_POSITIONS, "initializer_range": 0.3}
)
_WINDOW: Mapping[str, Any] = MappingProxyType({**_DECODER, "sliding_window": 8})
_MIXED_WINDOWS: Mapping[str, Any] = MappingProxyType(
    {**_WINDOW, "num_hidden_layers": 3, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}
)
_EXPERTS: Mapping[str, Any] = MappingProxyType({**_DECODER, "num_experts_per_tok": 2})
_LATENT: Mapping[str, Any] = MappingProxyType(  # keys of 12 and values of 8, both from one small vector
    {
        **_EXPERTS,
        "num_key_value_heads": 4,
        "head_dim": 4,
        "kv_lora_rank": 8,
        "q_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "moe_intermediate_size": 24,
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    }
)
# Tied embeddings with this initialization only repeat the last token, so most that have them by default do without.
_UNTIED: Mapping[str, Any] = MappingProxyType({"tie_word_embeddings": False})
# What each is here for stands behind it. Grouped queries (four heads on two) where nothing else is said.
ARCHITECTURES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama": _DECODER,
        "qwen2": _DECODER,  # biases on query, key and value alone
        "qwen3": _DECODER,  # a norm on each head
        "mistral": _WINDOW,  # one sliding window for all layers
        "ministral": _MIXED_WINDOWS,
        "cwm": {  # scaled frequencies
            **_MIXED_WINDOWS,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
        "gemma2": {  # soft-caps, a norm on both sides of each block, every other layer with a window
            **_WINDOW,
            **_UNTIED,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 20.0,
            "query_pre_attn_scalar": 8,
        },
        "gemma3_text": {**_MIXED_WINDOWS, **_UNTIED, "query_pre_attn_scalar": 8},  # two rotary embeddings
        "phi3": _DECODER,  # fused projections
        "phi": {**_DECODER, "num_key_value_heads": 4},  # parallel residual, rotary embedding of half a head
        "gpt2": _GPT2,  # learned positions, tied embeddings
        "gpt_bigcode": {**_GPT2, "multi_query": True},  # one key head for all
        "gpt_neox": {**_DECODER, "use_parallel_residual": True},  # parallel residual, fused query, key and value
        "opt": {  # learned positions with an offset
            "hidden_size": 32,
            "ffn_dim": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": MAX_POSITIONS,
            "word_embed_proj_dim": 32,
            "init_std": 0.3,
        },
        "cohere": {**_DECODER, **_UNTIED, "use_qk_norm": True},  # parallel residual, interleaved rotary embedding
        "cohere2": {**_MIXED_WINDOWS, **_UNTIED},  # no positions at all in the layers without a window
        "olmo2": _DECODER,  # norms behind the blocks, and over all heads at once
        "stablelm": {**_DECODER, "use_parallel_residual": True, "qk_layernorm": True},
        "starcoder2": {**_WINDOW, **_UNTIED},  # layer norms with biases
        "granite": {**_DECODER, "residual_multiplier": 0.5, "logits_scaling": 2.0, "attention_multiplier": 0.2},
        "smollm3": {**_DECODER, **_UNTIED, "no_rope_layers": [1, 0]},  # every other layer without positions
        "glm4": _DECODER,  # interleaved rotary embedding of half a head, norms on both sides
        "nemotron": _DECODER,  # squared ReLU without a gate
        "gpt_oss": {**_EXPERTS, "sliding_window": 8, "num_local_experts": 4},  # attention sinks, experts with biases
        "mixtral": {**_EXPERTS, "num_local_experts": 4},  # mixture of experts
        "qwen3_moe": {**_EXPERTS, "num_experts": 4, "moe_intermediate_size": 24, "norm_topk_prob": True},
        "glm4_moe": {  # experts of which the first layer has none, rotary embedding of half a head
            **_EXPERTS,
            "moe_intermediate_size": 24,
            "n_routed_experts": 4,
            "first_k_dense_replace": 1,
        },
        "deepseek_v3": _LATENT,  # keys wider than values, experts in groups and shared ones
    }
)


def write_tiny_model(directory: Path, architecture: str = "llama", *, seed: int = 0, **overrides: Any) -> Path:
    """Write config, safetensors and a byte-level tokenizer with a chat template; return the directory.

    `architecture` is a key of ARCHITECTURES; overrides replace fields of its configuration. Weights are float32 and
    drawn from the seed, wide enough that greedy ties are rare. Norms and biases differ from the ones and zeros of
    transformers' initialization, which would hide that somebody forgets them.
    """
    torch.manual_seed(seed)
    fields = {
        "vocab_size": VOCAB_SIZE,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        **ARCHITECTURES[architecture],
        **overrides,
    }
    config = AutoConfig.for_model(architecture, **fields)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    model.generation_config.eos_token_id = EOS
    model.generation_config.pad_token_id = EOS
    model.save_pretrained(directory)
    write_tiny_tokenizer(directory)
    return directory


def write_tiny_tokenizer(directory: Path) -> None:
    """Write a tokenizer of 256 bytes and the four special tokens, and its chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[1],
        "model_max_length": MAX_POSITIONS,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2))


def reference_generate(directory: Path, prompt: list[int], max_tokens: int, *, ignore_eos: bool = True) -> list[int]:
    """Return what transformers' own greedy `generate` says after the prompt, in float32."""
    model = read_reference(AutoModelForCausalLM, directory)
    eos = None if ignore_eos else EOS
    generated = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=max_tokens,
        eos_token_id=eos,
        pad_token_id=EOS,
    )
    tokens: list[int] = generated[0, len(prompt) :].tolist()
    return tokens
