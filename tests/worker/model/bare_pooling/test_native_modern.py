"""ModernBERTs and Nomic BERTs without torch: transformers' vectors and labels of each text alone."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import normalize
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM

from dormouse_worker.common.task_messages import PoolingParams
from dormouse_worker.common.tasks import CLASSIFY, SCORE
from dormouse_worker.engine.pooling.batch import PooledSequence, PoolingBatch
from dormouse_worker.model.testing_pooling import reference_logits, write_tiny_classifier, write_tiny_encoder
from tests.worker.model.bare_pooling.kit import change, halve, why, widen
from tests.worker.model.pooling.test_classifiers import numbers
from tests.worker.model.pooling.test_vectors import TEXTS, assert_alike, reference_hidden, vectors

KINDS = ["modernbert", "nomic_bert"]
OLD = {  # as files of ModernBERT's authors say it
    "rope_parameters": ...,
    "layer_types": ...,
    "global_attn_every_n_layers": 2,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 5000.0,
    "layer_norm_eps": 0.5,
    "position_embedding_type": "absolute",
}


@pytest.mark.parametrize("architecture", KINDS)
def test_weights_of_16_bits_give_the_bits_that_float32_gives(tmp_path, widened, architecture):
    path = halve(write_tiny_encoder(tmp_path, architecture))
    assert why(path) is None
    found = vectors(widened(path))
    for vector, other in zip(found, vectors(widened(widen(path))), strict=True):
        np.testing.assert_array_equal(vector, other)


def test_older_words_say_the_same(tmp_path, loaded):
    """Positions turn at other speeds near and far, and every second layer sees all."""
    path = change(write_tiny_encoder(tmp_path, "modernbert", local_attention=6), **OLD)
    assert why(path) is None
    assert_alike(vectors(loaded(path))[4], normalize(reference_hidden(path, TEXTS[4]).mean(0), dim=0))


def test_files_of_a_model_for_masked_words_make_vectors(tmp_path, loaded):
    bare = write_tiny_encoder(tmp_path / "bare", "modernbert")
    torch.manual_seed(1)
    AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(bare)).save_pretrained(tmp_path / "whole")
    assert "head.dense.weight" in load_file(tmp_path / "whole" / "model.safetensors")
    assert why(tmp_path / "whole") is None
    for vector, text in zip(vectors(loaded(tmp_path / "whole")), TEXTS, strict=True):
        assert_alike(vector, normalize(reference_hidden(tmp_path / "whole", text).mean(0), dim=0))


def test_the_second_text_of_a_pair_is_of_the_second_kind(tmp_path, loaded):
    path = write_tiny_encoder(tmp_path, "nomic_bert")
    pair, other = PooledSequence(TEXTS[0], PoolingParams(), 4), PooledSequence(TEXTS[1], PoolingParams())
    output = loaded(path).runner.begin(PoolingBatch((other, pair))).finish()
    module = AutoModel.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()  # nosec B615
    kinds = torch.tensor([[int(place >= 4) for place in range(len(TEXTS[0]))]])
    with torch.inference_mode():
        hidden = module(input_ids=torch.tensor([TEXTS[0]]), token_type_ids=kinds).last_hidden_state[0]
    assert_alike(np.frombuffer(output.vectors[1], "<f4"), normalize(hidden.mean(0), dim=0))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_numbers_of_labels_are_those_of_transformers(tmp_path, loaded, pooling):
    path = write_tiny_classifier(tmp_path, "modernbert", classifier_pooling=pooling)
    assert why(path, CLASSIFY) is None
    model = loaded(path)
    for plain, text in zip(numbers(model, use_activation=False), TEXTS, strict=True):
        np.testing.assert_allclose(plain, reference_logits(path, text).numpy(), atol=1e-5)
    np.testing.assert_array_equal(numbers(model, TEXTS[1:2])[0], numbers(model)[1])


def test_a_score_of_a_model_of_16_bits_is_transformers_in_float32(tmp_path, widened):
    path = halve(write_tiny_classifier(tmp_path, "modernbert", labels=("fits",)))
    assert why(path, SCORE) is None
    for plain, text in zip(numbers(widened(path), use_activation=False), TEXTS, strict=True):
        np.testing.assert_allclose(plain, reference_logits(path, text).numpy(), atol=1e-5)


THETA = {"rope_type": "default", "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attention_bias": True}, "attention_bias is True"),
        ({"hidden_activation": "silu"}, "hidden_activation is 'silu'"),
        ({"architectures": ["ModernBertForTokenClassification"]}, "config.json describes no ModernBertModel"),
        ({"alibi": 1}, "config.json says alibi, which is not known here"),
        ({"norm_eps": 0}, "norm_eps is 0"),
        ({"local_attention": 0}, "local_attention is 0"),
        ({"num_attention_heads": 5}, "5 heads share a hidden size of 32"),
        ({"num_attention_heads": 32}, "its heads have 1 numbers"),
        ({"classifier_pooling": ["cls"]}, "classifier_pooling is ['cls']"),
        ({"layer_types": ["full_attention"]}, "its layers attend in several ways"),
        ({"layer_types": [[], [], []]}, "its layers attend in several ways"),
        ({"layer_types": ["chunked_attention"] * 3}, "its layers attend in several ways"),
        ({"layer_types": ..., "global_attn_every_n_layers": 0}, "its layers attend in several ways"),
        ({"rope_parameters": {"full_attention": THETA}}, "its positions are no rotary embedding of type default"),
        ({"rope_parameters": [THETA]}, "its positions are no rotary embedding of type default"),
        ({"rope_parameters": ...}, "rope_theta is None"),
        (
            {"rope_parameters": {"full_attention": THETA, "sliding_attention": {"rope_type": "yarn", **THETA, "x": 1}}},
            "its positions are no rotary embedding of type default",
        ),
        ({"intermediate_size": 40}, "layers.0.mlp.Wi.weight is F32 [96, 32], not F32 [80, 32]"),
    ],
    ids=str,
)
def test_a_modernbert_of_another_kind_is_left_to_transformers(tmp_path, changes, reason):
    assert why(change(write_tiny_encoder(tmp_path, "modernbert"), **changes)) == reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"architectures": ["NomicBertForMaskedLM"]}, "config.json describes no NomicBertModel"),
        ({"n_embd": 32}, "config.json says n_embd, which is not known here"),
        ({"layer_norm_eps": True}, "layer_norm_eps is True"),
        ({"head_dim": 16}, "head_dim is 16"),
        ({"rope_parameters": None}, "its positions are no rotary embedding of type default"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": -1}}, "rope_theta is -1"),
        ({"rope_parameters": ...}, "config.json has no rope_parameters"),
        ({"vocab_size": 300}, "embeddings.word_embeddings.weight is F32 [260, 32], not F32 [300, 32]"),
    ],
    ids=str,
)
def test_a_nomic_bert_of_another_kind_is_left_to_transformers(tmp_path, changes, reason):
    assert why(change(write_tiny_encoder(tmp_path, "nomic_bert"), **changes)) == reason


def test_a_nomic_berts_head_is_left_to_transformers(tmp_path):
    assert why(write_tiny_classifier(tmp_path, "nomic_bert"), CLASSIFY) == "the head of a nomic_bert is transformers'"
    assert "pooler" in json.dumps(sorted(load_file(tmp_path / "model.safetensors")))
