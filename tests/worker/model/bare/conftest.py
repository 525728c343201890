"""Models as files, of each family, kind of numbers and tying."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from dormouse_worker.model.testing import write_tiny_model


@pytest.fixture(scope="session")
def model_of(tmp_path_factory):
    """Return a function that writes a model once and returns its directory, which nobody changes."""
    made = {}

    def write(architecture="llama", dtype="float32", **overrides):
        key = repr((architecture, dtype, overrides))
        if key not in made:
            made[key] = write_tiny_model(tmp_path_factory.mktemp("model"), architecture, **overrides)
            convert(made[key], dtype)
        return made[key]

    return write


def convert(directory, dtype):
    """Store the weights in this type."""
    file, config = directory / "model.safetensors", directory / "config.json"
    tensors = {name: tensor.to(getattr(torch, dtype)) for name, tensor in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})
    config.write_text(json.dumps({**json.loads(config.read_text()), "dtype": dtype}))
