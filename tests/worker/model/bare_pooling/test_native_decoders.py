"""Vectors, labels and scores of decoders without torch are those that transformers makes of each text alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import normalize
from transformers import AutoConfig, AutoModelForCausalLM

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.task_messages import PoolingParams
from dormouse_worker.common.tasks import CLASSIFY, EMBED, SCORE
from dormouse_worker.engine.pooling.batch import PooledSequence, PoolingBatch
from dormouse_worker.model.testing_pooling import reference_logits, write_tiny_classifier, write_tiny_encoder
from tests.worker.model.bare_pooling.kit import change, halve, why, widen
from tests.worker.model.pooling.test_classifiers import numbers
from tests.worker.model.pooling.test_vectors import TEXTS, assert_alike, reference_hidden, vectors

LLAMA3 = {  # of a model so small that its waves are short, between and long, too
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
DECODERS = {
    "llama": ("llama", {"rope_parameters": LLAMA3}),
    "a window": ("mistral", {}),
    "biases, causal": ("qwen2", {"is_causal": True}),
    "biases, both ways": ("qwen2", {}),
    "norms of heads": ("qwen3", {}),
    "odd sizes": ("qwen3", {"hidden_size": 60, "intermediate_size": 75, "num_attention_heads": 6, "head_dim": 10}),
}


@pytest.fixture(params=DECODERS)
def decoder(request, tmp_path):
    """Return a model's directory whose vectors are the mean and the last token's, side by side."""
    architecture, fields = DECODERS[request.param]
    return write_tiny_encoder(tmp_path, architecture, modules=("lasttoken", "mean_tokens"), **fields)


def test_vectors_are_those_of_transformers(decoder, loaded):
    assert why(decoder) is None
    model = loaded(decoder)
    assert model.info.embedding_size == 2 * model.runner.network.hidden_size
    for vector, text in zip(vectors(model, normalize=True), TEXTS, strict=True):
        hidden = reference_hidden(decoder, text)
        assert_alike(vector, normalize(torch.cat([hidden.mean(0), hidden[-1]]), dim=0))


def test_a_vector_has_the_same_bits_alone_as_among_others(decoder, loaded):
    model = loaded(decoder, max_num_batched_tokens=512)
    texts = [[(5 * place + number) % 250 for place in range(3 + number % 17)] for number in range(30)]
    together = vectors(model, texts)
    for number in (0, 7, 16, 29):
        np.testing.assert_array_equal(vectors(model, texts[number : number + 1])[0], together[number])


def test_weights_of_16_bits_give_the_bits_that_float32_gives(decoder, widened):
    path = halve(decoder)
    found = vectors(widened(path))
    for vector, other in zip(found, vectors(widened(widen(path))), strict=True):
        np.testing.assert_array_equal(vector, other)


def test_files_of_a_model_that_generates_make_the_last_tokens_vectors(tmp_path, loaded):
    """Their names begin otherwise, and there is a head that nobody reads."""
    bare = write_tiny_encoder(tmp_path / "bare", "qwen3")
    torch.manual_seed(1)
    config = AutoConfig.from_pretrained(bare)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "whole")
    assert "lm_head.weight" in load_file(tmp_path / "whole" / "model.safetensors")
    assert why(tmp_path / "whole", EMBED) is None
    for vector, text in zip(vectors(loaded(tmp_path / "whole", task="embed")), TEXTS, strict=True):
        assert_alike(vector, normalize(reference_hidden(tmp_path / "whole", text)[-1], dim=0))


def test_texts_longer_than_what_attention_sees_at_a_time_are_computed(tmp_path, loaded):
    path = write_tiny_encoder(tmp_path, "mistral", max_position_embeddings=600, sliding_window=70)
    texts = [[(7 * place + 11 * length) % 250 for place in range(length)] for length in (530, 65, 2)]
    for vector, text in zip(vectors(loaded(path, max_num_batched_tokens=600), texts), texts, strict=True):
        assert_alike(vector, normalize(reference_hidden(path, text).mean(0), dim=0))


def test_a_vector_is_cut_to_what_the_files_allow_and_then_normalized(tmp_path, loaded):
    path = write_tiny_encoder(tmp_path, "qwen3", modules=("lasttoken", "normalize"))
    model = loaded(change(path, matryoshka_dimensions=[16, 8]))
    assert model.info.dimensions == (8, 16)
    whole, cut = vectors(model)[0], vectors(model, dimensions=8)[0]
    np.testing.assert_allclose(cut, whole[:8] / np.linalg.norm(whole[:8]), rtol=1e-5)


def test_numbers_that_grow_too_large_are_told(tmp_path, loaded):
    path = write_tiny_encoder(tmp_path, "qwen3")
    tensors = load_file(path / "model.safetensors")
    tensors["layers.0.self_attn.o_proj.weight"][3] = 3e38
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    batch = PoolingBatch(tuple(PooledSequence(text, PoolingParams()) for text in TEXTS[:2]))
    assert loaded(path).runner.begin(batch).finish().not_finite == (0, 1)


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
def test_numbers_of_labels_are_those_of_transformers(tmp_path, loaded, architecture):
    path = write_tiny_classifier(tmp_path, architecture)
    assert why(path, CLASSIFY) is None
    for plain, text in zip(numbers(loaded(path), use_activation=False), TEXTS, strict=True):
        np.testing.assert_allclose(plain, reference_logits(path, text).numpy(), atol=1e-5)


@pytest.mark.parametrize("text", [[5, 6, 7, 1], [5, 1, 1], [1, 1], [1, 6]], ids=str)
def test_a_head_reads_the_last_token_that_is_no_padding_as_transformers_does(tmp_path, loaded, text):
    path = write_tiny_classifier(tmp_path, "qwen3")
    found = numbers(loaded(path), [text], use_activation=False)[0]
    np.testing.assert_allclose(found, reference_logits(path, text).numpy(), atol=1e-5)


def test_without_a_padding_token_every_last_token_is_read(tmp_path, loaded):
    path, text = write_tiny_classifier(tmp_path, "qwen2", labels=("fits",), pad_token_id=None), [5, 6, 7, 1]
    assert why(path, SCORE) is None
    found = numbers(loaded(path), [text], use_activation=False)[0]
    np.testing.assert_allclose(found, reference_logits(path, text).numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["Qwen3ForTokenClassification"]}, "config.json describes no Qwen3ForCausalLM or Qwen3Model"),
        ({"is_causal": "no"}, "is_causal is 'no'"),
        ({"pad_token_id": "[PAD]"}, "pad_token_id is '[PAD]'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"alibi": 1}, "config.json says alibi, which is not known here"),
        (
            {"num_hidden_layers": 3},
            "its files differ in layers.2.input_layernorm.weight from what config.json describes",
        ),
        ({"intermediate_size": 40}, "layers.0.mlp.gate_proj.weight is F32 [48, 32], not F32 [40, 32]"),
        ({"dtype": "float16"}, "its type is float16"),
    ],
    ids=str,
)
def test_what_is_not_known_here_is_left_to_transformers(tmp_path, changes, reason):
    assert why(change(write_tiny_encoder(tmp_path, "qwen3"), **changes)) == reason


def test_a_window_that_sees_both_ways_is_left_to_transformers(tmp_path):
    assert why(change(write_tiny_encoder(tmp_path, "mistral"), is_causal=False)) == "is_causal is False"


def test_a_classifier_makes_no_vectors_and_a_network_without_a_head_has_no_labels(tmp_path):
    classifier, bare = write_tiny_classifier(tmp_path / "a", "qwen3"), write_tiny_encoder(tmp_path / "b", "qwen3")
    assert why(classifier, EMBED) == "config.json describes no Qwen3ForCausalLM or Qwen3Model"
    assert why(bare, CLASSIFY) == "config.json describes no Qwen3ForSequenceClassification"


def test_a_tensor_that_nobody_knows_is_left_to_transformers(tmp_path):
    path = write_tiny_encoder(tmp_path, "qwen3")
    tensors = load_file(path / "model.safetensors")
    save_file({**tensors, "extra.weight": torch.ones(2)}, path / "model.safetensors", {"format": "pt"})
    assert why(path) == "its files differ in extra.weight from what config.json describes"


def test_a_text_is_as_long_as_positions_and_a_pass_allow(tmp_path, loaded):
    path = write_tiny_encoder(tmp_path, "qwen3")
    assert loaded(path, max_num_batched_tokens=100).max_model_len == 66
    with pytest.raises(InvalidSettings, match="maxModelLen 67 is above the model's limit of 66 positions"):
        loaded(path, max_model_len=67)
    with pytest.raises(IndexError):
        vectors(loaded(path), [[5, 100_000]])
