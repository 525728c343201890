"""Vectors computed without torch are those that transformers makes of each text alone, whatever else is in the pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import normalize

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.task_messages import PoolingParams
from dormouse_worker.engine.pooling.batch import PooledSequence, PoolingBatch
from dormouse_worker.model.bare_pooling import modern, nomic
from dormouse_worker.model.bare_pooling.families import FAMILIES
from dormouse_worker.model.testing_pooling import write_tiny_encoder
from tests.worker.model.bare_pooling.kit import change, why
from tests.worker.model.pooling.test_vectors import POOLED, TEXTS, assert_alike, reference_hidden, vectors

PASSES = ["bert", modern.KIND, nomic.KIND]  # of which each has layers of another make


@pytest.mark.parametrize("architecture", [*FAMILIES, modern.KIND, nomic.KIND])
def test_vectors_are_those_of_transformers(tmp_path, loaded, architecture):
    path = write_tiny_encoder(tmp_path, architecture, modules=("lasttoken", "mean_tokens"))
    assert why(path) is None
    for vector, text in zip(vectors(loaded(path), normalize=True), TEXTS, strict=True):
        hidden = reference_hidden(path, text)
        assert_alike(vector, normalize(torch.cat([hidden.mean(0), hidden[-1]]), dim=0))


@pytest.mark.parametrize("architecture", PASSES)
def test_layers_of_odd_sizes_are_computed(tmp_path, loaded, architecture):
    """No size is a multiple of a vector's, and some texts are longer than what attention sees at a time."""
    sizes = {"hidden_size": 60, "intermediate_size": 75, "num_attention_heads": 5, "max_position_embeddings": 600}
    path = write_tiny_encoder(tmp_path, architecture, num_hidden_layers=4, **sizes)
    texts = [[(7 * place + 11 * length) % 250 for place in range(length)] for length in (530, 65, 2)]
    for vector, text in zip(vectors(loaded(path, max_num_batched_tokens=600), texts), texts, strict=True):
        assert_alike(vector, normalize(reference_hidden(path, text).mean(0), dim=0))


@pytest.mark.parametrize("mode", POOLED)
def test_every_pooling_is_that_of_its_name(tmp_path, loaded, mode):
    path = write_tiny_encoder(tmp_path, modules=(mode,))
    for vector, text in zip(vectors(loaded(path)), TEXTS, strict=True):
        assert_alike(vector, POOLED[mode](reference_hidden(path, text)))


@pytest.mark.parametrize("architecture", PASSES)
def test_a_vector_has_the_same_bits_alone_as_among_others(tmp_path, loaded, architecture):
    model = loaded(write_tiny_encoder(tmp_path, architecture), max_num_batched_tokens=512)
    texts = [[(5 * place + number) % 250 for place in range(3 + number % 17)] for number in range(30)]
    together = vectors(model, texts)
    for number in (0, 7, 16, 29):
        np.testing.assert_array_equal(vectors(model, texts[number : number + 1])[0], together[number])


@pytest.mark.parametrize("architecture", PASSES)
def test_a_pass_stops_several_times_in_a_layer_and_has_the_bits_of_each_text_alone(tmp_path, loaded, architecture):
    """Sizes at which products and attention are cut into several steps, elsewhere than those of each text alone."""
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4, "max_position_embeddings": 700}
    path = write_tiny_encoder(tmp_path, architecture, num_hidden_layers=2, **sizes)
    runner = loaded(path, max_num_batched_tokens=1100).runner
    texts = [[(7 * place + length) % 250 for place in range(length)] for length in (600, 100, 400)]
    batch = PoolingBatch(tuple(PooledSequence(text, PoolingParams()) for text in texts))
    stopped, num_steps = runner.begin(batch), 1
    while not stopped.advance(0):
        num_steps += 1
    alone = [runner.begin(PoolingBatch((sequence,))).finish().vectors[0] for sequence in batch.sequences]
    assert stopped.finish().vectors == alone
    assert num_steps > 2 * 12
    assert_alike(np.frombuffer(alone[0], "<f4"), normalize(reference_hidden(path, texts[0]).mean(0), dim=0))


def test_a_vector_is_cut_first_and_then_normalized(tmp_path, loaded):
    model = loaded(write_tiny_encoder(tmp_path, modules=("mean_tokens", "normalize")))
    whole, cut = vectors(model)[0], vectors(model, dimensions=8)[0]
    np.testing.assert_allclose(cut, whole[:8] / np.linalg.norm(whole[:8]), rtol=1e-5)
    assert np.linalg.norm(vectors(model, dimensions=8, normalize=False)[0]) != pytest.approx(1)


def test_the_second_text_of_a_pair_is_of_the_second_kind(tmp_path, loaded):
    path = write_tiny_encoder(tmp_path)
    pair, other = PooledSequence(TEXTS[0], PoolingParams(), 4), PooledSequence(TEXTS[1], PoolingParams())
    output = loaded(path).runner.begin(PoolingBatch((other, pair))).finish()
    from transformers import AutoModel

    module = AutoModel.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()  # nosec B615
    kinds = torch.tensor([[int(place >= 4) for place in range(len(TEXTS[0]))]])
    with torch.inference_mode():
        hidden = module(input_ids=torch.tensor([TEXTS[0]]), token_type_ids=kinds).last_hidden_state[0]
    assert_alike(np.frombuffer(output.vectors[1], "<f4"), normalize(hidden.mean(0), dim=0))


def test_a_vector_that_is_not_finite_is_told_apart(tmp_path, loaded):
    path = write_tiny_encoder(tmp_path)
    tensors = load_file(path / "model.safetensors")
    tensors["embeddings.word_embeddings.weight"][TEXTS[1][0]] = 3e38
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    texts = [TEXTS[0][5:], TEXTS[1], TEXTS[0][5:]]
    batch = PoolingBatch(tuple(PooledSequence(text, PoolingParams()) for text in texts))
    assert loaded(path).runner.begin(batch).finish().not_finite == (1,)


def test_a_token_that_nobody_knows_is_refused(tmp_path, loaded):
    with pytest.raises(IndexError):
        vectors(loaded(write_tiny_encoder(tmp_path)), [[5, 100_000]])


def test_a_text_is_as_long_as_positions_files_and_a_pass_allow(tmp_path, loaded):
    path = write_tiny_encoder(tmp_path, "roberta", modules=("mean_tokens",))
    assert loaded(path, max_num_batched_tokens=100).max_model_len == 64  # two positions are padding's
    with pytest.raises(InvalidSettings, match="maxModelLen 65 is above the model's limit of 64 positions"):
        loaded(path, max_model_len=65)


def test_what_nobody_reads_may_lie_in_the_files(tmp_path, loaded):
    path = write_tiny_encoder(tmp_path)
    tensors = load_file(path / "model.safetensors")
    before = vectors(loaded(path))
    tensors |= {"pooler.dense.weight": torch.ones(32, 32), "embeddings.position_ids": torch.arange(66)[None]}
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    assert why(path) is None
    for vector, other in zip(vectors(loaded(path)), before, strict=True):
        np.testing.assert_array_equal(vector, other)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_act": "gelu_new"}, "hidden_act is 'gelu_new'"),
        ({"architectures": ["BertForMaskedLM"]}, "config.json describes no BertModel"),
        ({"model_type": "electra"}, "config.json describes none of bert, "),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"alibi": 1}, "config.json says alibi, which is not known here"),
        ({"layer_norm_eps": ...}, "config.json has no layer_norm_eps"),
        ({"layer_norm_eps": 0}, "layer_norm_eps is 0"),
        ({"num_attention_heads": 5}, "5 heads share a hidden size of 32"),
        ({"type_vocab_size": True}, "type_vocab_size is True"),
        ({"num_hidden_layers": 3}, "its files differ in encoder.layer.2.attention.output.LayerNorm.bias"),
        ({"intermediate_size": 40}, "encoder.layer.0.intermediate.dense.weight is F32 [48, 32], not F32 [40, 32]"),
        ({"model_type": ["bert"]}, "config.json describes none of bert, "),
        ({"dtype": "float16"}, "its type is float16"),
    ],
    ids=str,
)
def test_what_is_not_known_here_is_left_to_transformers(tmp_path, changes, reason):
    assert str(why(change(write_tiny_encoder(tmp_path), **changes))).startswith(reason)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"dtype": "bfloat16"}, "its type is bfloat16"),
        ({"quantization": "int8"}, "quantization is int8"),
        ({"engine_runtime": "torch"}, "engine_runtime asks for it"),
    ],
    ids=str,
)
def test_what_the_settings_ask_for_beyond_it_is_left_to_torch(tmp_path, settings, reason):
    assert why(write_tiny_encoder(tmp_path), **settings) == reason


def test_a_padding_token_beyond_the_positions_is_left_to_transformers(tmp_path):
    path = change(write_tiny_encoder(tmp_path, "roberta"), pad_token_id=70)
    assert why(path) == "pad_token_id is 70"


def test_files_that_change_between_choice_and_load_are_refused(tmp_path, loaded):
    path = write_tiny_encoder(tmp_path)
    change(path, hidden_act="relu")
    with pytest.raises(InvalidSettings, match="needs an engine with torch: hidden_act is 'relu'"):
        loaded(path)
