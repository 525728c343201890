"""Numbers of labels computed without torch are those that transformers' classifiers make of each text alone."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dormouse_worker.common.tasks import CLASSIFY, EMBED, SCORE
from dormouse_worker.model.bare_pooling.families import FAMILIES
from dormouse_worker.model.bare_pooling.head import activated
from dormouse_worker.model.pooling import classifier
from dormouse_worker.model.testing_pooling import reference_logits, write_tiny_classifier, write_tiny_encoder
from tests.worker.model.bare_pooling.kit import change, why
from tests.worker.model.pooling.test_classifiers import TEXTS, numbers

STARTS = [5, 1, 0, 0, 29]


@pytest.mark.parametrize("architecture", FAMILIES)
def test_numbers_are_those_of_transformers(tmp_path, loaded, architecture):
    path = write_tiny_classifier(tmp_path, architecture)
    assert why(path, CLASSIFY) is None
    model = loaded(path)
    assert (model.info.task, model.info.labels, model.info.embedding_size) == ("classify", ("no", "maybe", "yes"), 0)
    for plain, told, text in zip(numbers(model, use_activation=False), numbers(model), TEXTS, strict=True):
        reference = reference_logits(path, text)
        np.testing.assert_allclose(plain, reference.numpy(), atol=1e-5)
        np.testing.assert_allclose(told, torch.softmax(reference, 0).numpy(), atol=1e-5)


def test_scores_of_pairs_are_those_of_transformers(tmp_path, loaded):
    path = write_tiny_classifier(tmp_path, labels=("fits",))
    assert why(path, SCORE) is None
    model = loaded(path)
    assert model.info.task == "score"
    for told, text, start in zip(numbers(model, starts=STARTS), TEXTS, STARTS, strict=True):
        np.testing.assert_allclose(told, torch.sigmoid(reference_logits(path, text, start)).numpy(), atol=1e-5)


@pytest.mark.parametrize("architecture", ["bert", "roberta", "distilbert"])
def test_numbers_have_the_same_bits_alone_as_among_others(tmp_path, loaded, architecture):
    model = loaded(write_tiny_classifier(tmp_path, architecture), max_num_batched_tokens=512)
    texts = [[(5 * place + number) % 250 for place in range(3 + number % 17)] for number in range(30)]
    together = numbers(model, texts)
    for number in (0, 7, 16, 29):
        np.testing.assert_array_equal(numbers(model, texts[number : number + 1])[0], together[number])


@pytest.mark.parametrize("activation", ["none", "sigmoid", "softmax"])
def test_activations_are_those_of_torch(activation):
    row = np.array([1.0, -2.0, 95.0, -95.0], np.float32)
    with np.errstate(over="ignore"):
        found = activated(row, activation)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, classifier.activated(torch.from_numpy(row), activation).numpy(), atol=1e-7)


def test_a_vector_of_a_classifiers_encoder_is_left_to_torch(tmp_path):
    assert why(write_tiny_classifier(tmp_path), EMBED) == "config.json describes no BertModel"


def test_an_encoder_without_a_head_has_no_labels(tmp_path):
    assert why(write_tiny_encoder(tmp_path), CLASSIFY) == "config.json describes no BertForSequenceClassification"


def test_files_without_the_head_are_left_to_torch(tmp_path):
    path = write_tiny_classifier(tmp_path)
    tensors = load_file(path / "model.safetensors")
    del tensors["bert.pooler.dense.bias"]
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    assert why(path, CLASSIFY) == "its files differ in bert.pooler.dense.bias from what config.json describes"


def test_a_head_of_other_sizes_is_left_to_torch(tmp_path):
    path = change(write_tiny_classifier(tmp_path), id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1})
    assert why(path, CLASSIFY) == "classifier.weight is F32 [3, 32], not F32 [2, 32]"


@pytest.mark.parametrize("architecture", ["bert", "xlm-roberta", "distilbert"])
def test_what_no_head_reads_may_lie_in_the_files(tmp_path, loaded, architecture):
    path = write_tiny_classifier(tmp_path, architecture)
    before, tensors = numbers(loaded(path)), load_file(path / "model.safetensors")
    root = FAMILIES[architecture].root
    unread = {f"{root}embeddings.position_ids": torch.arange(66)[None]}
    if architecture != "bert":
        unread[f"{root}pooler.dense.weight"] = torch.ones(32, 32)
    save_file(tensors | unread, path / "model.safetensors", {"format": "pt"})
    assert why(path, CLASSIFY) is None
    np.testing.assert_array_equal(numbers(loaded(path)), before)
