"""A model and a smaller one that drafts for it, both trained on the same text: what a draft model is measured with.

The model is the trained tiny one, grown to the layers of q05 without a change of what it says: rows, columns and heads
of zeros, and layers that add nothing. So a pass costs what a pass of such layers costs, and how often the small one is
right is what training made of it.

    python -m bench.draft_pair        make both, and print where they are
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from math import sqrt
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tools.bootstrap import cache_root, machine_lock
from tools.train_model import Recipe, make

SMALL = Recipe(hidden_size=128, num_layers=2, num_heads=4, num_kv_heads=2, intermediate_size=352)
HIDDEN, LAYERS, HEADS, MLP = 896, 24, 28, 4864  # q05's, with heads of half its size and twice as many
WEIGHTS = "model.safetensors"

Tensors = Mapping[str, torch.Tensor]


def make_pair() -> tuple[Path, Path]:
    """Return the directories of the model and of the one that drafts, made unless they are in the cache."""
    return _grow(make(Recipe())), make(SMALL)


def _grow(tiny: Path) -> Path:
    digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    final = cache_root() / "models" / f"bench-grown-{tiny.name}-{digest}"
    with machine_lock("grown-model"):
        if not final.is_dir():
            building = final.with_name(final.name + ".partial")
            shutil.rmtree(building, ignore_errors=True)
            shutil.copytree(tiny, building)
            config = json.loads((tiny / "config.json").read_text("utf-8"))
            save_file(grow(load_file(tiny / WEIGHTS), config), building / WEIGHTS, {"format": "pt"})
            (building / "config.json").write_text(json.dumps(grown_config(config)), "utf-8")
            building.rename(final)
    return final


def grown_config(config: dict[str, object]) -> dict[str, object]:
    """Return the configuration of the model that `grow` makes."""
    share = _share(config)
    return config | {
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "head_dim": _number(config, "hidden_size") // _number(config, "num_attention_heads"),
        "intermediate_size": MLP,
        "rms_norm_eps": float(str(config["rms_norm_eps"])) * share,
        "dtype": "bfloat16",
    }


def grow(weights: Tensors, config: Mapping[str, object]) -> dict[str, torch.Tensor]:
    """Return the weights of a larger model that says the same."""
    num_heads, num_kv = _number(config, "num_attention_heads"), _number(config, "num_key_value_heads")
    head, num_layers = _number(config, "hidden_size") // num_heads, _number(config, "num_hidden_layers")
    kept = [kv * (HEADS // num_kv) + place for kv in range(num_kv) for place in range(num_heads // num_kv)]
    rows = torch.tensor([index * head + offset for index in kept for offset in range(head)])
    scale = sqrt(_share(config))  # zeros make the mean of squares smaller

    def attend(weight: torch.Tensor) -> torch.Tensor:
        return torch.zeros(HEADS * head, HIDDEN).index_copy_(0, rows, _pad(weight, len(weight), HIDDEN))

    shapes: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "self_attn.q_proj": attend,
        "self_attn.k_proj": lambda weight: _pad(weight, len(weight), HIDDEN),
        "self_attn.v_proj": lambda weight: _pad(weight, len(weight), HIDDEN),
        "self_attn.o_proj": lambda weight: attend(weight.T).T,
        "mlp.gate_proj": lambda weight: _pad(weight, MLP, HIDDEN),
        "mlp.up_proj": lambda weight: _pad(weight, MLP, HIDDEN),
        "mlp.down_proj": lambda weight: _pad(weight, HIDDEN, MLP),
        "input_layernorm": lambda weight: _pad(scale * weight[None], 1, HIDDEN)[0],
        "post_attention_layernorm": lambda weight: _pad(scale * weight[None], 1, HIDDEN)[0],
    }
    embedding = weights["model.embed_tokens.weight"]
    grown = {
        "model.embed_tokens.weight": _pad(embedding, len(embedding), HIDDEN),
        "model.norm.weight": _pad(scale * weights["model.norm.weight"][None], 1, HIDDEN)[0],
    }
    for layer in range(LAYERS):
        for name, shape in shapes.items():
            known = weights[f"model.layers.{layer % num_layers}.{name}.weight"]
            adds = layer < num_layers or not name.endswith(("o_proj", "down_proj"))
            grown[f"model.layers.{layer}.{name}.weight"] = shape(known if adds else torch.zeros_like(known))
    return {name: weight.to(torch.bfloat16).contiguous() for name, weight in grown.items()}


def _pad(weight: torch.Tensor, num_rows: int, num_columns: int) -> torch.Tensor:
    padded = torch.zeros(num_rows, num_columns)
    padded[: weight.shape[0], : weight.shape[1]] = weight
    return padded


def _share(config: Mapping[str, object]) -> float:
    return _number(config, "hidden_size") / HIDDEN


def _number(config: Mapping[str, object], name: str) -> int:
    return int(str(config[name]))


if __name__ == "__main__":
    print(*make_pair(), sep="\n")
