"""A model and a smaller one that drafts for it, both trained on the same text: what a draft model is measured with.

The model is the trained tiny one, grown to the layers of q05 without a change of what it says: rows, columns and heads
of zeros, and layers that add nothing. So a pass costs what a pass of such layers costs, and how often the small one is
right is what training made of it.

    python -m bench.draft_pair        make both (the small one takes minutes), and print where they are
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import sqrt
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tools.bootstrap import cache_root, machine_lock
from tools.train_model import Recipe, make

SMALL = Recipe(hidden_size=128, num_layers=2, num_heads=4, num_kv_heads=2, intermediate_size=352, steps=300)
WEIGHTS, CONFIG = "model.safetensors", "config.json"

Config = Mapping[str, Any]
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a model grows; heads keep their size, and keys and values their heads."""

    hidden: int
    num_layers: int
    num_heads: int
    mlp: int


Q05 = Shape(896, 24, 28, 4864)  # heads of half the size of q05's, and twice as many


def make_pair() -> tuple[Path, Path]:
    """Return the directories of the model and of the one that drafts, made unless they are in the cache."""
    tiny, small = make(Recipe()), make(SMALL)
    digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    final = cache_root() / "models" / f"bench-grown-{tiny.name}-{digest}"
    with machine_lock("grown-model"):
        if not final.is_dir():
            building = final.with_name(final.name + ".partial")
            shutil.rmtree(building, ignore_errors=True)
            shutil.copytree(tiny, building)
            config = json.loads((tiny / CONFIG).read_text("utf-8"))
            grown = grow(load_file(tiny / WEIGHTS), config, Q05)
            halved = {name: weight.to(torch.bfloat16) for name, weight in grown.items()}
            save_file(halved, building / WEIGHTS, {"format": "pt"})
            said = json.dumps({**grown_config(config, Q05), "dtype": "bfloat16"})
            (building / CONFIG).write_text(said, "utf-8")
            building.rename(final)
    return final, small


def grown_config(config: Config, shape: Shape) -> Config:
    """Return the configuration of the model that `grow` makes."""
    return {
        **config,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "head_dim": config["hidden_size"] // config["num_attention_heads"],
        "intermediate_size": shape.mlp,
        "rms_norm_eps": config["rms_norm_eps"] * config["hidden_size"] / shape.hidden,
    }


def grow(weights: Tensors, config: Config, shape: Shape) -> dict[str, torch.Tensor]:
    """Return the weights of a larger Llama, in float32, that says the same."""
    norm = partial(_widen, scale=sqrt(config["hidden_size"] / shape.hidden), size=shape.hidden)  # of fewer squares
    embedding = weights["model.embed_tokens.weight"]
    grown = {
        "model.embed_tokens.weight": _pad(embedding, len(embedding), shape.hidden),
        "model.norm.weight": norm(weights["model.norm.weight"]),
    }
    known = config["num_hidden_layers"]
    for layer in range(shape.num_layers):
        for name, enlarge in _enlargements(config, shape, norm).items():
            weight = weights[f"model.layers.{layer % known}.{name}.weight"]
            is_mute = layer >= known and name.endswith(("o_proj", "down_proj"))
            grown[f"model.layers.{layer}.{name}.weight"] = enlarge(torch.zeros_like(weight) if is_mute else weight)
    return {name: weight.float().contiguous() for name, weight in grown.items()}


def _enlargements(
    config: Config, shape: Shape, norm: Callable[[torch.Tensor], torch.Tensor]
) -> Mapping[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Return how each matrix of a layer grows."""
    num_heads, num_kv = config["num_attention_heads"], config["num_key_value_heads"]
    size = config["hidden_size"] // num_heads
    kept = [kv * (shape.num_heads // num_kv) + place for kv in range(num_kv) for place in range(num_heads // num_kv)]
    rows = torch.tensor([head * size + offset for head in kept for offset in range(size)])

    def spread(weight: torch.Tensor) -> torch.Tensor:
        """Put heads behind the keys and values that they had."""
        wide = _pad(weight, len(weight), shape.hidden)
        return torch.zeros(shape.num_heads * size, shape.hidden).index_copy_(0, rows, wide)

    keys = partial(_pad, num_rows=num_kv * size, num_columns=shape.hidden)
    up = partial(_pad, num_rows=shape.mlp, num_columns=shape.hidden)
    return MappingProxyType(
        {
            "self_attn.q_proj": spread,
            "self_attn.k_proj": keys,
            "self_attn.v_proj": keys,
            "self_attn.o_proj": lambda weight: spread(weight.T).T,
            "mlp.gate_proj": up,
            "mlp.up_proj": up,
            "mlp.down_proj": partial(_pad, num_rows=shape.hidden, num_columns=shape.mlp),
            "input_layernorm": norm,
            "post_attention_layernorm": norm,
        }
    )


def _widen(weight: torch.Tensor, *, scale: float, size: int) -> torch.Tensor:
    return _pad(scale * weight[None], 1, size)[0]


def _pad(weight: torch.Tensor, num_rows: int, num_columns: int) -> torch.Tensor:
    padded = torch.zeros(num_rows, num_columns)
    padded[: weight.shape[0], : weight.shape[1]] = weight
    return padded


if __name__ == "__main__":
    print(*make_pair(), sep="\n")
