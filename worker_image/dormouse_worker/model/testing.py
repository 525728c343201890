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
ARCHITECTURES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama": _DECODER,
        "qwen2": _DECODER,
        "qwen3": _DECODER,
        "mistral": {**_DECODER, "sliding_window": 8},
        "gemma2": {
            **_DECODER,
            "sliding_window": 8,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 20.0,
            "query_pre_attn_scalar": 8,
            "tie_word_embeddings": False,  # tied ones with this initialization only repeat the last token
        },
        "phi3": _DECODER,
        "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": MAX_POSITIONS, "initializer_range": 0.3},
        "opt": {
            "hidden_size": 32,
            "ffn_dim": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": MAX_POSITIONS,
            "word_embed_proj_dim": 32,
            "init_std": 0.3,
        },
        "gpt_oss": {**_DECODER, "sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    }
)


def write_tiny_model(directory: Path, architecture: str = "llama", *, seed: int = 0, **overrides: Any) -> Path:
    """Write config, safetensors and a byte-level tokenizer with a chat template; return the directory.

    `architecture` is a key of ARCHITECTURES; overrides replace fields of its configuration. Weights are float32 and
    drawn from the seed, wide enough that greedy ties are rare.
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
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
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
