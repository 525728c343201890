"""Tiny checkpoints of gpt-oss as they are published: experts in MXFP4."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from dormouse_worker.model.testing import write_tiny_model

SIZES = {"hidden_size": 64, "intermediate_size": 96}
SAID = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
EXPERTS = "model.layers.0.mlp.experts"


def draw(num_experts, num_outputs, columns, *, least=118, most=126):
    """Return random blocks [experts, out, in / 32, 16] and scales [experts, out, in / 32] of powers [least, most)."""
    generator = torch.Generator().manual_seed(columns)
    shape = (num_experts, num_outputs, columns // 32)
    blocks = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=generator)
    return blocks, torch.randint(least, most, shape, dtype=torch.uint8, generator=generator)


def write_packed(directory: Path, **sizes: int) -> Path:
    """Write a tiny model whose experts are drawn anew, in MXFP4 where inputs are whole blocks; return the directory."""
    write_tiny_model(directory, "gpt_oss", **{**SIZES, **sizes})
    file = directory / "model.safetensors"
    tensors = {}
    for name, tensor in load_file(file).items():
        if tensor.dim() == 3 and tensor.shape[1] % 32 == 0:
            tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = draw(len(tensor), tensor.shape[2], tensor.shape[1])
        else:
            tensors[name] = tensor
    save_file(tensors, file, metadata={"format": "pt"})
    edit_config(directory, quantization_config=SAID)
    return directory


def edit_config(directory: Path, **fields: object) -> None:
    """Replace fields of config.json."""
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
