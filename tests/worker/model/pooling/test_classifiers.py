"""Numbers of packed texts and pairs are those that transformers' classifiers make of each alone."""

from typing import Any

import numpy as np
import pytest
import torch

from dormouse_worker.common.errors import InvalidSettings, ModelInvalid
from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.task_messages import PoolingParams
from dormouse_worker.engine.pooling.batch import PooledSequence, PoolingBatch
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.pooling.classifier import ClassifierHead, activated
from dormouse_worker.model.pooling.loader import load_pooler
from dormouse_worker.model.testing_pooling import reference_logits, write_tiny_classifier

TEXTS = [[7 * i % 250 + 5 for i in range(length)] for length in (12, 3, 12, 1, 30)]
TEXTS[2] = [token_id + 1 for token_id in TEXTS[2]]  # as long as another one, and not equal
# Each family's head is another: a pooler in the backbone, one behind it, bare layers, the last token but padding.
HEADS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {},
    "xlm-roberta": {},
    "distilbert": {},
    "modernbert": {"classifier_pooling": "mean"},
    "nomic_bert": {},
    "gte": {},
    "electra": {},
    "albert": {},
    "eurobert": {"classifier_pooling": "late"},
    "qwen3": {},
    "qwen2": {"pad_token_id": None},
    "mistral": {},
}


@pytest.fixture
def loaded():
    """Return a function that loads a model; its memory is given back after the test."""
    stores = []

    def load(path, **settings):
        given = {"max_num_batched_tokens": 64, **settings}
        model = load_pooler(EngineSettings(model=str(path), **given), CpuDevice(Host()))
        stores.append(model.weights)
        return model

    yield load
    for store in stores:
        store.close()


def numbers(model, texts=TEXTS, starts=None, **params):
    given = zip(texts, starts or [0] * len(texts), strict=True)
    batch = PoolingBatch(tuple(PooledSequence(text, PoolingParams(**params), start) for text, start in given))
    output = model.runner.begin(batch).finish()
    assert output.not_finite == ()
    return [np.frombuffer(vector, "<f4") for vector in output.vectors]


@pytest.mark.parametrize("architecture", HEADS)
def test_numbers_are_those_of_transformers(tmp_path, loaded, architecture):
    path = write_tiny_classifier(tmp_path, architecture, **HEADS[architecture])
    model = loaded(path)
    assert (model.info.task, model.info.labels, model.info.embedding_size) == ("classify", ("no", "maybe", "yes"), 0)
    for plain, told, text in zip(numbers(model, use_activation=False), numbers(model), TEXTS, strict=True):
        reference = reference_logits(path, text)
        np.testing.assert_allclose(plain, reference.numpy(), atol=1e-5)
        np.testing.assert_allclose(told, torch.softmax(reference, 0).numpy(), atol=1e-5)


def test_a_decoders_head_reads_the_last_token_that_is_no_padding(tmp_path, loaded):
    path, text = write_tiny_classifier(tmp_path, "qwen3"), [5, 6, 7, 1]  # as transformers does, whoever wrote it
    found = numbers(loaded(path), [text], use_activation=False)[0]
    np.testing.assert_allclose(found, reference_logits(path, text).numpy(), atol=1e-5)


@pytest.mark.parametrize("architecture", ["bert", "electra", "albert"])
def test_pairs_are_told_apart_where_the_model_has_kinds_of_tokens(tmp_path, loaded, architecture):
    path = write_tiny_classifier(tmp_path, architecture, labels=("fits",))
    model, starts = loaded(path), [5, 1, 0, 0, 29]
    assert model.info.task == "score"
    for told, text, start in zip(numbers(model, starts=starts), TEXTS, starts, strict=True):
        np.testing.assert_allclose(told, torch.sigmoid(reference_logits(path, text, start)).numpy(), atol=1e-5)
    assert not np.allclose(numbers(model, starts=starts)[0], numbers(model)[0], atol=1e-4)


def test_pairs_of_a_model_without_such_kinds_are_one_text(tmp_path, loaded):
    model = loaded(write_tiny_classifier(tmp_path, "modernbert", labels=("fits",)))
    assert np.array_equal(numbers(model, starts=[5, 1, 0, 0, 29]), numbers(model))


def test_what_is_computed_behind_the_backbone_of_more_than_hidden_states_is_refused(tmp_path, loaded):
    model = loaded(write_tiny_classifier(tmp_path))
    head = model.runner.head
    assert isinstance(head, ClassifierHead)
    with pytest.raises(ModelInvalid, match="BertForSequenceClassification makes its numbers of more than"):
        head.check(torch.zeros(5, 32), torch.full((1, 3), 7.0))


def test_a_head_of_another_number_of_labels_than_the_task_takes_is_refused(tmp_path, loaded):
    path = write_tiny_classifier(tmp_path)
    with pytest.raises(InvalidSettings, match="names 3 labels; allowed is 1 where the task is score"):
        loaded(path, task="score")


def test_numbers_that_are_not_finite_are_told(tmp_path, loaded):
    model = loaded(write_tiny_classifier(tmp_path))
    model.runner.encoder.module.embeddings.word_embeddings.weight.data[9] = float("nan")
    batch = PoolingBatch(tuple(PooledSequence(text, PoolingParams()) for text in ([5, 6], [9], [7])))
    assert model.runner.begin(batch).finish().not_finite == (1,)


def test_activations():
    row = torch.tensor([1.0, -2.0])
    assert torch.equal(activated(row, "none"), row)
    assert torch.equal(activated(row, "sigmoid"), torch.sigmoid(row))
    assert activated(row, "softmax").sum() == pytest.approx(1)


@pytest.mark.parametrize("architecture", ["bert", "modernbert", "qwen3"])
def test_labels_of_16_bits_are_nearly_those_of_float32(tmp_path, loaded, architecture):
    """Kernels of ours may compute the encoder; the head is compared with what torch makes of the whole module."""
    path = write_tiny_classifier(tmp_path, architecture, **HEADS[architecture])
    for found, exact in zip(numbers(loaded(path, dtype="bfloat16")), numbers(loaded(path)), strict=True):
        np.testing.assert_allclose(found, exact, atol=0.1)
