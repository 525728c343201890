"""Adapters with random weights as peft writes them, and models into which they are merged. For tests of every part."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from dormouse_worker.model.testing_reference import read_reference

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
SPREAD = 0.2  # of the weights: wide enough that an adapter changes what a tiny model says


def write_adapter(
    directory: Path,
    base: Path,
    *,
    rank: int = 4,
    targets: Sequence[str] = ("q_proj", "v_proj"),
    seed: int = 0,
    alpha: float = 8,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> Path:
    """Write an adapter of a base model's directory; return its own. `config` replaces or adds fields."""
    generator = torch.Generator().manual_seed(seed)
    model = read_reference(AutoModelForCausalLM, base)
    tensors = {}
    for name, module in model.named_modules():
        if type(module) is nn.Linear and name.rpartition(".")[2] in targets and ".layers." in name:
            shapes = {"A": (rank, module.in_features), "B": (module.out_features, rank)}
            for half, shape in shapes.items():
                weight = torch.randn(*shape, generator=generator) * SPREAD / math.sqrt(rank)
                tensors[f"base_model.model.{name}.lora_{half}.weight"] = weight.to(dtype)
    directory.mkdir(parents=True, exist_ok=True)
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": list(targets),
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
    }
    (directory / CONFIG_FILE).write_text(json.dumps({**fields, **config}))
    save_file(tensors, directory / WEIGHTS_FILE)
    return directory


def write_soft_prompt(
    directory: Path, base: Path, *, num_tokens: int = 6, seed: int = 0, kind: str = "PROMPT_TUNING", **config: Any
) -> Path:
    """Write a soft prompt of a base model's directory; return its own. `config` replaces or adds fields."""
    of_base = AutoConfig.from_pretrained(base)  # nosec B615  # of a directory
    size, fields = of_base.hidden_size, {"token_dim": of_base.hidden_size}
    if kind == "PREFIX_TUNING":
        heads, layers = of_base.num_key_value_heads, of_base.num_hidden_layers
        fields = {"token_dim": heads * of_base.head_dim, "num_attention_heads": heads, "num_layers": layers}
        size = layers * 2 * heads * of_base.head_dim
    vectors = torch.randn(num_tokens, size, generator=torch.Generator().manual_seed(seed))
    directory.mkdir(parents=True, exist_ok=True)
    fields |= {"peft_type": kind, "task_type": "CAUSAL_LM", "num_virtual_tokens": num_tokens}
    (directory / CONFIG_FILE).write_text(json.dumps({**fields, **config}))
    save_file({"prompt_embeddings": vectors}, directory / WEIGHTS_FILE)
    return directory


def merge_adapter(directory: Path, base: Path, adapter: Path, *, scale: float) -> Path:
    """Write the base with W + scale · B · A in place of W; return the directory."""
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)  # nosec B615  # of a directory
    tensors = load_file(adapter / WEIGHTS_FILE)
    for name, module in model.named_modules():
        key = f"base_model.model.{name}.lora_A.weight"
        if key in tensors:
            b = tensors[key.replace("lora_A", "lora_B")]
            module.weight.data += scale * (b.float() @ tensors[key].float())
    model.save_pretrained(directory)
    return directory
