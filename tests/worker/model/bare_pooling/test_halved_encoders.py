"""Weights of 16 bits, where the processor multiplies float32 alone: float32's vectors in half of its memory."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import normalize

from dormouse_worker.model.bare_pooling.families import FAMILIES
from dormouse_worker.model.testing_pooling import reference_hidden, reference_logits, write_tiny_classifier
from dormouse_worker.model.testing_pooling import write_tiny_encoder as write
from tests.worker.model.bare_pooling.kit import change, halve, why, widen
from tests.worker.model.pooling.test_classifiers import numbers
from tests.worker.model.pooling.test_vectors import TEXTS, assert_alike, vectors

PAIRED = [5, 1, 0, 0, 29]  # where the second text of each begins


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_vectors_are_those_of_transformers_in_float32(tmp_path, widened, architecture, dtype):
    path = halve(write(tmp_path, architecture))
    assert why(path, dtype=dtype) is None
    for vector, text in zip(vectors(widened(path, dtype=dtype)), TEXTS, strict=True):
        assert_alike(vector, normalize(reference_hidden(path, text).mean(0), dim=0))


def test_vectors_have_the_bits_that_float32_weights_of_the_same_numbers_give(tmp_path, widened):
    """Sizes that are no multiple of a vector's, and passes of one row, of few and of many."""
    path = halve(write(tmp_path, hidden_size=60, intermediate_size=75, num_attention_heads=5))
    passes = [[[9]], [[5, 6, 7]], TEXTS]
    halves = widened(path)
    found = [vectors(halves, texts) for texts in passes]
    whole = widened(widen(path))
    for texts, given in zip(passes, found, strict=True):
        for vector, other in zip(given, vectors(whole, texts), strict=True):
            np.testing.assert_array_equal(vector, other)
    assert halves.weights_bytes < 0.6 * whole.weights_bytes
    assert (halves.info.dtype, whole.info.dtype) == ("bfloat16", "float32")


def test_numbers_of_labels_and_pairs_are_those_of_transformers_in_float32(tmp_path, widened):
    path = halve(write_tiny_classifier(tmp_path))
    found = numbers(widened(path), starts=PAIRED, use_activation=False)
    for row, text, start in zip(found, TEXTS, PAIRED, strict=True):
        np.testing.assert_allclose(row, reference_logits(path, text, start).numpy(), atol=1e-5)


def test_where_the_processor_multiplies_bfloat16_torch_does(tmp_path):
    path, kernels = write(tmp_path), SimpleNamespace(multiplies_bfloat16=True)
    assert why(path, kernels=kernels) is None
    assert "its weights are bfloat16, which this processor multiplies" in why(halve(path), kernels=kernels)


@pytest.mark.parametrize(
    ("dtype", "reason"),
    [("float16", "its type is float16"), ("bfloat16", None), ("float32", None)],
)
def test_what_is_asked_for_is_computed_or_left_to_torch(tmp_path, dtype, reason):
    assert why(halve(write(tmp_path)), dtype=dtype) == reason


def test_weights_that_would_have_to_be_rounded_are_left_to_torch(tmp_path):
    assert why(change(write(tmp_path), dtype="bfloat16")) == "its type is bfloat16"


def test_weights_of_two_types_are_left_to_torch(tmp_path):
    path = halve(write(tmp_path))
    tensors = load_file(path / "model.safetensors")
    tensors["encoder.layer.1.output.dense.bias"] = torch.zeros(32)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    assert why(path) == "encoder.layer.1.output.dense.bias is F32 [32], not BF16 [32]"
