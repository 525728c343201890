"""Draft models of tests: a model itself, nearly so, its first layers, one that knows nothing."""

from __future__ import annotations

import json
import shutil

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from dormouse_worker.model.testing import write_tiny_model
from tests.worker.executor.plain_heads import OwnHead, ThirdHead
from tools import train_head

WEIGHTS = "model.safetensors"


def same(directory, target):
    """Return a copy of a model: always right."""
    shutil.copytree(target, directory)
    return directory


def blurred(directory, target, by=0.02):
    """Return a model whose weights are a little other ones: mostly right."""
    same(directory, target)
    torch.manual_seed(5)
    weights = load_file(directory / WEIGHTS)
    others = {name: weight + by * weight.std() * torch.randn_like(weight) for name, weight in weights.items()}
    save_file(others, directory / WEIGHTS, {"format": "pt"})
    return directory


def shortened(directory, target, num_layers=2):
    """Return a model of the first layers: right now and then."""
    config = same(directory, target) / "config.json"
    settings = json.loads(config.read_text("utf-8"))
    kinds = {"layer_types": settings["layer_types"][:num_layers]} if "layer_types" in settings else {}
    config.write_text(json.dumps(settings | kinds | {"num_hidden_layers": num_layers}), "utf-8")
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


def stranger(directory, target):
    """Return a model of chance, of another architecture."""
    kind = json.loads((target / "config.json").read_text("utf-8"))["model_type"]
    return write_tiny_model(directory, "qwen2" if kind == "llama" else "llama")


def broken(directory, target):
    """Return a model whose logits are not finite."""
    shortened(directory, target, 1)
    weights = load_file(directory / WEIGHTS)
    save_file({name: weight * 1e30 for name, weight in weights.items()}, directory / WEIGHTS, {"format": "pt"})
    return directory


def head(directory, target, scale=1.0, rows=None, steps=40):
    """Return an EAGLE head of chance, or one that has learned these rows of tokens; `scale` its numbers."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval().requires_grad_(False)
    made = train_head.build_head(model.config)
    if rows is not None:
        recipe = train_head.Recipe(steps=steps, learning_rate=1e-2)
        train_head.train(made, model, torch.tensor(rows)[None].expand(steps, -1, -1), recipe)
    made.requires_grad_(False)
    for weight in made.parameters():
        weight.mul_(scale)
    train_head.save(made, model.config, directory)
    return directory


def third_head(directory, target, scale=1.0, rows=None, steps=60, depths=(0, 1, 2)):
    """Return an EAGLE-3 head of chance, or one that has learned a row of tokens, whose vocabulary is smaller."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval().requires_grad_(False)
    known = rows[0] if rows else ()
    made = ThirdHead(model.config, sorted({*range(0, model.config.vocab_size, 2), *known}), depths)
    if rows:
        made.learn(model, rows[0], steps)
    made.requires_grad_(False)
    for weight in made.parameters():
        weight.mul_(scale)
    directory.mkdir(parents=True)
    own = {"draft_vocab_size": len(made.d2t), "eagle_aux_hidden_state_layer_ids": list(depths)}
    settings = {"num_hidden_layers": 1, "architectures": ["LlamaForCausalLMEagle3"], **own}
    of_target = json.loads((target / "config.json").read_text("utf-8"))
    (directory / "config.json").write_text(json.dumps(of_target | settings), "utf-8")
    save_file({name: each.contiguous() for name, each in made.state_dict().items()}, directory / WEIGHTS)
    return directory


def heads_of(root, target, rows):
    """Write heads of both kinds, of which the taught ones were taught these rows; return their directories."""
    return {
        f"{kind}{name}": write(root / f"{kind}{name}".replace(", ", "-"), target, **fields)
        for kind, write in (("", head), ("third, ", third_head))
        for name, fields in (("taught", {"rows": rows}), ("ignorant", {}), ("broken", {"scale": 1e30}))
    }


def own_head(directory, rows=None, steps=60, scale=1.0):
    """Put a head for multi-token prediction into a model's checkpoint, of chance or one that learned; return it."""
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval().requires_grad_(False)
    made, begins = OwnHead(model), f"model.layers.{model.config.num_hidden_layers}."
    if rows:
        made.learn(rows[0], steps)
    made.layer.requires_grad_(False)
    for weight in made.layer.parameters():
        weight.mul_(scale)
    change_config(directory, num_nextn_predict_layers=1)
    beside = {"embed_tokens.weight": torch.zeros(260, 32), "shared_head.head.weight": torch.zeros(260, 32)}
    own = {**dict(made.stored(begins)), **{begins + name: tensor for name, tensor in beside.items()}}
    change_weights(directory, lambda weights: weights.update(own))
    return made


def change_config(head, **changes):
    """Write other values into the configuration of a head."""
    file = head / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | changes), "utf-8")


def change_weights(head, change):
    """Write the weights of a head as `change` leaves them."""
    weights = load_file(head / WEIGHTS)
    change(weights)
    save_file(weights, head / WEIGHTS, {"format": "pt"})
