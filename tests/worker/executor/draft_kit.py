"""Draft models for the small trained model: itself, its first layers, and one that knows nothing."""

from __future__ import annotations

import json
import shutil

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"


def same(directory, target):
    """Return a copy of a model: always right."""
    shutil.copytree(target, directory)
    return directory


def shortened(directory, target, num_layers=2):
    """Return a model of the first layers: right now and then."""
    config = same(directory, target) / "config.json"
    settings = json.loads(config.read_text("utf-8"))
    config.write_text(json.dumps(settings | {"num_hidden_layers": num_layers}), "utf-8")
    weights = load_file(directory / WEIGHTS)
    gone = [f"model.layers.{layer}." for layer in range(num_layers, settings["num_hidden_layers"])]
    kept = {name: weight for name, weight in weights.items() if not name.startswith(tuple(gone))}
    save_file(kept, directory / WEIGHTS, {"format": "pt"})
    return directory


def ignorant(directory, target):
    """Return a model of one layer with weights of chance."""
    shortened(directory, target, 1)
    torch.manual_seed(3)
    weights = load_file(directory / WEIGHTS)
    save_file({name: torch.randn_like(weight) * 0.1 for name, weight in weights.items()}, directory / WEIGHTS)
    return directory


def broken(directory, target):
    """Return a model whose logits are not finite."""
    shortened(directory, target, 1)
    weights = load_file(directory / WEIGHTS)
    save_file({name: weight * 1e30 for name, weight in weights.items()}, directory / WEIGHTS, {"format": "pt"})
    return directory
