"""Tiny models that make vectors, with random weights, and what transformers makes of a text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from dormouse_worker.model.testing import VOCAB_SIZE, write_tiny_tokenizer
from dormouse_worker.model.testing_reference import read_reference

MAX_POSITIONS = 66  # RoBERTa's kinds count from 2 on

_ENCODER: Mapping[str, Any] = MappingProxyType(
    {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": MAX_POSITIONS,
        "initializer_range": 0.3,
        "pad_token_id": 1,
        "bos_token_id": None,
        "eos_token_id": None,
    }
)
_DECODER: Mapping[str, Any] = MappingProxyType({**_ENCODER, "num_key_value_heads": 2, "head_dim": 8})
# What each is here for stands behind it.
ARCHITECTURES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "bert": _ENCODER,  # learned positions, norms behind the blocks
        "roberta": _ENCODER,  # positions that begin behind the padding token's id
        "xlm-roberta": _ENCODER,
        "camembert": _ENCODER,
        "distilbert": {
            "dim": 32,
            "hidden_dim": 48,
            "n_layers": 2,
            "n_heads": 4,
            "max_position_embeddings": MAX_POSITIONS,
            "initializer_range": 0.3,
            "pad_token_id": 1,
        },
        "modernbert": {  # every third layer sees all, the others a window on both sides
            **_ENCODER,
            "num_hidden_layers": 3,
            "global_attn_every_n_layers": 3,
            "local_attention": 8,
            "cls_token_id": None,
            "sep_token_id": None,
        },
        "nomic_bert": _ENCODER,  # rotary embedding, gated
        "gte": _ENCODER,
        "electra": {**_ENCODER, "embedding_size": 16},  # embeddings of another width
        "albert": {**_ENCODER, "embedding_size": 16},  # one layer, many times
        "eurobert": {**_DECODER, "mask_token_id": 2},  # a decoder's blocks that see both ways
        "llama": _DECODER,  # causal
        "qwen3": _DECODER,
        "qwen2": {**_DECODER, "is_causal": False},  # a decoder that was told to see both ways
        "mistral": {**_DECODER, "sliding_window": 8},
        "gemma3_text": {
            **_DECODER,
            "use_bidirectional_attention": True,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    }
)


def write_tiny_encoder(
    directory: Path, architecture: str = "bert", *, seed: int = 0, modules: Sequence[str] = (), **overrides: Any
) -> Path:
    """Write config, safetensors and a byte-level tokenizer; return the directory. Weights are float32.

    `modules` are sentence-transformers', behind its Transformer: pooling modes, `dense`, `normalize`.
    """
    torch.manual_seed(seed)
    fields = {"vocab_size": VOCAB_SIZE, **ARCHITECTURES[architecture], **overrides}
    model = AutoModel.from_config(AutoConfig.for_model(architecture, **fields), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    model.save_pretrained(directory)
    write_tiny_tokenizer(directory)
    if modules:
        _write_modules(directory, modules)
    return directory


def reference_hidden(directory: Path, token_ids: Sequence[int]) -> torch.Tensor:
    """Return what transformers' own attention makes of one text alone: hidden states [T, H] in float32."""
    model = read_reference(AutoModel, directory, attn_implementation="eager")
    with torch.inference_mode():
        hidden: torch.Tensor = model(input_ids=torch.tensor([list(token_ids)])).last_hidden_state[0]
    return hidden


def write_tiny_classifier(
    directory: Path, architecture: str = "bert", *, labels: Sequence[str] = ("no", "maybe", "yes"), **overrides: Any
) -> Path:
    """Write a sequence classifier as `write_tiny_encoder` does an encoder; return the directory."""
    torch.manual_seed(0)
    named = dict(enumerate(labels))
    fields = {"vocab_size": VOCAB_SIZE, **ARCHITECTURES[architecture], "id2label": named, **overrides}
    config = AutoConfig.for_model(architecture, **fields)
    model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    model.save_pretrained(directory)
    write_tiny_tokenizer(directory)
    return directory


def reference_logits(directory: Path, token_ids: Sequence[int], second_start: int = 0) -> torch.Tensor:
    """Return what transformers' own classifier makes of one text alone, or of a pair: [labels] in float32."""
    model = read_reference(AutoModelForSequenceClassification, directory, attn_implementation="eager")
    types = {"token_type_ids": torch.tensor([[int(place >= second_start) for place in range(len(token_ids))]])}
    with torch.inference_mode():
        given = torch.tensor([list(token_ids)])
        logits: torch.Tensor = model(input_ids=given, **(types if second_start else {})).logits[0]
    return logits


def _write_modules(directory: Path, modules: Sequence[str]) -> None:
    kinds = ["Transformer", "Pooling", *(name.capitalize() for name in modules if name in {"dense", "normalize"})]
    folders = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds[1:], start=1))]
    listed = [
        {"idx": number, "name": str(number), "path": folder, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, folder) in enumerate(zip(kinds, folders, strict=True))
    ]
    _write(directory / "modules.json", listed)
    modes = {f"pooling_mode_{name}": True for name in modules if name not in {"dense", "normalize"}}
    _write(directory / folders[1] / "config.json", {"word_embedding_dimension": 32, **modes})
    for kind, folder in zip(kinds, folders, strict=True):
        if kind == "Dense":
            size = 32 * len(modes)
            activation = {"in_features": size, "out_features": 24, "bias": True}
            _write(
                directory / folder / "config.json",
                {**activation, "activation_function": "torch.nn.modules.activation.Tanh"},
            )
            weights = {"linear.weight": torch.randn(24, size) * 0.2, "linear.bias": torch.randn(24)}
            save_file(weights, directory / folder / "model.safetensors")


def _write(file: Path, content: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
