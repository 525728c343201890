"""Tiny encoder-decoder models with random weights, as ordinary Hugging Face directories, and what transformers says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from dormouse_worker.model.testing import BOS, EOS, MAX_POSITIONS, VOCAB_SIZE, write_tiny_tokenizer
from dormouse_worker.model.testing_reference import read_reference

WIDTH = 0.3  # of what is added to weights
_T5: Mapping[str, Any] = MappingProxyType(
    {
        "d_model": 32,
        "d_kv": 6,
        "d_ff": 48,
        "num_layers": 3,
        "num_decoder_layers": 2,
        "num_heads": 4,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 12,
        "n_positions": MAX_POSITIONS,
        "feed_forward_proj": "gated-gelu",
    }
)
_BART: Mapping[str, Any] = MappingProxyType(
    {
        "d_model": 32,
        "encoder_layers": 3,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "max_position_embeddings": MAX_POSITIONS,
        "init_std": 0.3,
        "tie_word_embeddings": False,  # tied ones with such weights repeat themselves
        "forced_eos_token_id": None,
    }
)
TWO_SIDED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "t5": {**_T5, "feed_forward_proj": "relu", "tie_word_embeddings": True},  # scaled before a tied head
        "mt5": _T5,  # never scaled
        "umt5": _T5,  # a bias in each layer
        "bart": _BART,
        "mbart": {**_BART, "scale_embedding": True},
        "pegasus": {**_BART, "scale_embedding": True},
        "marian": {**_BART, "scale_embedding": True},
        "plbart": _BART,
        "blenderbot": _BART,
    }
)


def write_two_sided(
    directory: Path,
    architecture: str = "t5",
    *,
    seed: int = 0,
    generation: Mapping[str, Any] | None = None,
    **overrides: Any,
) -> Path:
    """Write config, safetensors and a byte-level tokenizer; return the directory. See `testing.write_tiny_model`.

    `generation` are fields of generation_config.json.
    """
    torch.manual_seed(seed)
    fields = {
        "vocab_size": VOCAB_SIZE,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": EOS,
        "decoder_start_token_id": BOS,
        **TWO_SIDED[architecture],
        **overrides,
    }
    config = AutoConfig.for_model(architecture, **fields)
    model = AutoModelForSeq2SeqLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:  # tables of sines stay as they are
                parameter.add_(torch.randn_like(parameter), alpha=WIDTH)
    model.generation_config.update(**(generation or {}))
    model.save_pretrained(directory)
    write_tiny_tokenizer(directory)
    return directory


def answers_of(directory: Path, prompts: Sequence[Sequence[int]], max_tokens: int, **arguments: Any) -> list[list[int]]:
    """Return what transformers' greedy `generate` answers to each prompt alone in float32, behind the opening."""
    model = read_reference(AutoModelForSeq2SeqLM, directory)
    num_opening = 1 if model.generation_config.forced_bos_token_id is None else 2
    how = {"do_sample": False, "num_beams": 1, "eos_token_id": None, "max_length": None, **arguments}
    answers: list[list[int]] = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        said = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens + num_opening - 1, **how
        )
        answers.append(said[0, num_opening:].tolist())
    return answers
