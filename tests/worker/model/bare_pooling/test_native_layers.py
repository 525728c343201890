"""Layers behind the pooling without torch are those of the files, as torch computes them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import linear, normalize

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.model.testing_pooling import reference_hidden, write_tiny_encoder
from tests.worker.model.bare_pooling.kit import why
from tests.worker.model.pooling.test_vectors import TEXTS, assert_alike, vectors

LAYER, NAMES = "2_Dense", ("linear.weight", "linear.bias")
KINDS = {
    "linear.Identity": lambda rows: rows,
    "activation.GELU": torch.nn.functional.gelu,
    "activation.ReLU": torch.relu,
    "activation.Sigmoid": torch.sigmoid,
    "activation.Tanh": torch.tanh,
}


@pytest.fixture
def path(tmp_path):
    """Return an encoder's directory with a layer that makes 24 numbers of the mean."""
    return write_tiny_encoder(tmp_path, modules=("mean_tokens", "dense", "normalize"))


def layer(path, tensors=None, activation="torch.nn.modules.activation.Tanh"):
    """Write the layer anew; return its tensors."""
    file = path / LAYER / "model.safetensors"
    found = load_file(file) if tensors is None else tensors
    save_file(found, file)
    (path / LAYER / "config.json").write_text(json.dumps({"activation_function": activation}))
    return found


def expected(path, tensors, text, activation):
    weight, bias = (None if tensor is None else tensor.float() for tensor in map(tensors.get, NAMES))
    return normalize(activation(linear(reference_hidden(path, text).mean(0), weight, bias)), dim=0)


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_torchs_layers(path, loaded, kind):
    tensors = layer(path, activation=f"torch.nn.modules.{kind}")
    assert why(path) is None
    model = loaded(path)
    assert model.info.embedding_size == 24
    for vector, text in zip(vectors(model), TEXTS, strict=True):
        assert_alike(vector, expected(path, tensors, text, KINDS[kind]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_may_have_no_bias_and_16_bits(path, loaded, dtype):
    tensors = layer(path, {"linear.weight": (torch.randn(24, 32) * 0.2).to(dtype)})
    assert why(path) is None
    for vector, text in zip(vectors(loaded(path)), TEXTS, strict=True):
        assert_alike(vector, expected(path, tensors, text, torch.tanh))


def test_layers_stand_one_behind_the_other(tmp_path, loaded):
    path = write_tiny_encoder(tmp_path, "qwen3", modules=("lasttoken", "mean_tokens", "dense"))
    modules = json.loads((path / "modules.json").read_text())
    (path / "modules.json").write_text(json.dumps([*modules, {**modules[2], "path": "3_Dense"}]))
    (path / "3_Dense").mkdir()
    second = {"linear.weight": torch.randn(8, 24)}
    save_file(second, path / "3_Dense" / "model.safetensors")
    first = load_file(path / LAYER / "model.safetensors")
    model = loaded(path)
    assert (why(path), model.info.embedding_size) == (None, 8)
    for vector, text in zip(vectors(model), TEXTS, strict=True):
        hidden = reference_hidden(path, text)
        between = torch.tanh(linear(torch.cat([hidden.mean(0), hidden[-1]]), *map(first.get, NAMES)))
        assert_alike(vector, linear(between, second["linear.weight"]))


def test_a_vector_has_the_same_bits_alone_as_among_others(path, loaded):
    model = loaded(path)
    np.testing.assert_array_equal(vectors(model, TEXTS[1:2])[0], vectors(model)[1])


def test_an_activation_that_nobody_knows_is_left_to_torch(path):
    layer(path, activation="torch.nn.modules.activation.ELU")
    assert why(path) == "the activation of a layer behind its pooling is torch.nn.modules.activation.ELU"


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"linear.bias": torch.zeros(24)},
        {"linear.weight": torch.zeros(24, 31)},
        {"linear.weight": torch.zeros(24)},
        {"linear.weight": torch.zeros(0, 32)},
        {"linear.weight": torch.zeros(24, 32).half()},
        {"linear.weight": torch.zeros(24, 32), "linear.bias": torch.zeros(23)},
    ],
    ids=lambda tensors: str({name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}),
)
def test_a_layer_of_another_type_or_size_is_left_to_torch(path, tensors):
    layer(path, tensors)
    assert why(path) == "a layer behind its pooling is of another type or size"


def test_a_file_that_is_damaged_is_left_to_torch_to_refuse(path):
    file = path / LAYER / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    assert "truncated or damaged" in why(path)


def test_a_layer_that_changes_between_choice_and_load_is_refused(path, loaded):
    layer(path, {})
    with pytest.raises(InvalidSettings, match="needs an engine with torch: a layer behind its pooling is of another"):
        loaded(path)
