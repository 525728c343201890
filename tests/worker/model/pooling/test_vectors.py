"""Vectors of packed texts are those that transformers makes of each text alone."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.nn.functional import normalize

from dormouse_worker.common.errors import InvalidSettings, ModelInvalid
from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.task_messages import PoolingParams
from dormouse_worker.engine.pooling.batch import PooledSequence, PoolingBatch
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.native_way import kernels_for
from dormouse_worker.model.pooling.loader import load_pooler, slow_words
from dormouse_worker.model.testing_pooling import ARCHITECTURES, reference_hidden, write_tiny_encoder
from dormouse_worker.native.library import Missing, load_kernels
from tests.worker.model.asked import Asked

TEXTS = [[7 * i % 250 + 5 for i in range(length)] for length in (12, 3, 12, 1, 30)]
TEXTS[2] = [token_id + 1 for token_id in TEXTS[2]]  # as long as another one, and not equal


@pytest.fixture
def loaded():
    """Return a function that loads a model; its memory is given back after the test."""
    stores = []

    def load(path, **settings):
        model = load_pooler(
            EngineSettings(model=str(path), **{"max_num_batched_tokens": 64, **settings}), CpuDevice(Host())
        )
        stores.append(model.weights)
        return model

    yield load
    for store in stores:
        store.close()


def vectors(model, texts=TEXTS, **params):
    batch = PoolingBatch(tuple(PooledSequence(text, PoolingParams(**params)) for text in texts))
    output = model.runner.begin(batch).finish()
    assert output.not_finite == ()
    return [np.frombuffer(vector, "<f4") for vector in output.vectors]


def assert_alike(vector, reference):
    reference = reference.numpy()
    assert vector.shape == reference.shape
    cosine = float(vector @ reference / np.linalg.norm(vector) / np.linalg.norm(reference))
    assert cosine >= 0.999999
    assert np.abs(vector - reference).max() <= 1e-5


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_vectors_are_those_of_transformers(tmp_path, loaded, architecture):
    path = write_tiny_encoder(tmp_path, architecture, modules=("lasttoken", "mean_tokens"))
    for vector, text in zip(vectors(loaded(path), normalize=True), TEXTS, strict=True):
        hidden = reference_hidden(path, text)
        assert_alike(vector, normalize(torch.cat([hidden.mean(0), hidden[-1]]), dim=0))


POOLED = {
    "cls_token": lambda rows: rows[0],
    "max_tokens": lambda rows: rows.amax(0),
    "mean_tokens": lambda rows: rows.mean(0),
    "mean_sqrt_len_tokens": lambda rows: rows.sum(0) / len(rows) ** 0.5,
    "weightedmean_tokens": lambda rows: torch.arange(1.0, len(rows) + 1) @ rows / sum(range(1, len(rows) + 1)),
    "lasttoken": lambda rows: rows[-1],
}


@pytest.mark.parametrize("mode", POOLED)
def test_every_pooling_is_that_of_its_name_and_is_not_normalized_where_the_files_do_not(tmp_path, loaded, mode):
    path = write_tiny_encoder(tmp_path, modules=(mode,))
    for vector, text in zip(vectors(loaded(path)), TEXTS, strict=True):
        assert_alike(vector, POOLED[mode](reference_hidden(path, text)))


def test_layers_behind_the_pooling_and_normalizing_follow_the_files(tmp_path, loaded):
    path = write_tiny_encoder(tmp_path, modules=("mean_tokens", "dense", "normalize"))
    model = loaded(path)
    assert model.info.embedding_size == 24
    from safetensors.torch import load_file

    dense = load_file(path / "2_Dense" / "model.safetensors")
    hidden = reference_hidden(path, TEXTS[0]).mean(0)
    expected = torch.tanh(torch.nn.functional.linear(hidden, dense["linear.weight"], dense["linear.bias"]))
    assert_alike(vectors(model)[0], normalize(expected, dim=0))


def test_a_vector_is_cut_first_and_then_normalized(tmp_path, loaded):
    path = write_tiny_encoder(tmp_path, modules=("mean_tokens", "normalize"))
    model = loaded(path)
    whole, cut = vectors(model)[0], vectors(model, dimensions=8)[0]
    np.testing.assert_allclose(cut, whole[:8] / np.linalg.norm(whole[:8]), rtol=1e-5)
    assert np.linalg.norm(vectors(model, dimensions=8, normalize=False)[0]) != pytest.approx(1)


def test_weights_under_the_names_of_a_model_with_a_head_are_found(tmp_path, loaded):
    from transformers import AutoConfig, AutoModelForMaskedLM

    bare = write_tiny_encoder(tmp_path / "bare")
    torch.manual_seed(1)
    AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(bare)).save_pretrained(tmp_path / "whole")
    model = loaded(tmp_path / "whole")
    assert_alike(vectors(model)[0], normalize(reference_hidden(tmp_path / "whole", TEXTS[0]).mean(0), dim=0))


@pytest.mark.parametrize("architecture", ["mpnet", "convbert", "deberta-v2"])
def test_a_model_whose_attention_is_its_own_is_refused(tmp_path, loaded, architecture):
    """It would mix the texts of a pass."""
    from transformers import AutoConfig, AutoModel

    fields = {**ARCHITECTURES["bert"], "vocab_size": 260}
    AutoModel.from_config(AutoConfig.for_model(architecture, **fields)).save_pretrained(tmp_path)
    with pytest.raises(ModelInvalid, match=r"0 of 2 layers of \w+ use transformers' attention interface"):
        loaded(tmp_path)


def test_a_text_is_as_long_as_positions_files_and_a_pass_allow(tmp_path, loaded):
    path = write_tiny_encoder(tmp_path, "roberta", modules=("mean_tokens",))
    assert loaded(path, max_num_batched_tokens=100).max_model_len == 64  # two positions are padding's
    assert loaded(path, max_num_batched_tokens=50).max_model_len == 50
    (path / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    assert loaded(path).max_model_len == 20
    assert loaded(path, max_model_len=30).max_model_len == 30
    with pytest.raises(InvalidSettings, match="maxModelLen 65 is above the model's limit of 64 positions"):
        loaded(path, max_model_len=65)
    with pytest.raises(InvalidSettings, match="maxModelLen 60 is above maxNumBatchedTokens 50"):
        loaded(path, max_model_len=60, max_num_batched_tokens=50)


@pytest.mark.parametrize(
    ("dtype", "device", "multiplies", "is_told"),
    [
        ("bfloat16", "cpu", False, True),
        ("float16", "cpu", False, True),
        ("float32", "cpu", False, False),
        ("bfloat16", "cpu", True, False),
        ("bfloat16", "meta", False, False),
    ],
)
def test_a_type_that_the_processor_computes_in_software_is_told(dtype, device, multiplies, is_told):
    kernels = SimpleNamespace(multiplies_bfloat16=multiplies)
    words = slow_words(dtype, torch.device(device), kernels)
    assert words == (f"; {dtype} is slow on this processor: dtype float32 is faster, in twice the memory" * is_told)
    assert slow_words(dtype, torch.device(device), Missing("none")) == ""


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_vectors_of_16_bits_by_our_kernels_are_as_exact_as_torchs(tmp_path, loaded, architecture):
    """Beside those of the same weights in float32."""
    path = write_tiny_encoder(tmp_path, architecture, modules=("mean_tokens",))
    exact, halved = loaded(path, dtype="float32"), loaded(path, dtype="bfloat16")
    parameters = [model.runner.encoder.module.parameters() for model in (exact, halved)]
    for wide, narrow in zip(*parameters, strict=True):
        wide.data.copy_(narrow.data)
    with Asked() as asked:
        ours = vectors(computed_by(halved, load_kernels()))
    assert functional.linear not in asked.of_halves
    error, their_error = (
        np.mean([np.abs(one - other).mean() for one, other in zip(found, vectors(exact), strict=True)])
        for found in (ours, vectors(computed_by(halved, None)))
    )
    assert error <= 1.5 * their_error


def computed_by(model, kernels):
    """Return a model that computes by these kernels, None = by torch."""
    encoder = replace(model.runner.encoder, kernels=kernels)
    return replace(model, runner=replace(model.runner, encoder=encoder))


@pytest.mark.parametrize("backend", ["auto", "sdpa"])
def test_our_kernels_compute_vectors_of_16_bits_where_they_are_faster(tmp_path, loaded, backend):
    """And the status tells it."""
    model = loaded(write_tiny_encoder(tmp_path), dtype="bfloat16", attention_backend=backend)
    known = kernels_for(backend, torch.device("cpu"), torch.bfloat16)
    assert model.runner.encoder.kernels is known
    assert (", maps " in model.info.compute_path) == (known is not None)


def test_a_models_status_tells_it(tmp_path, loaded):
    model = loaded(write_tiny_encoder(tmp_path), dtype="bfloat16")
    is_slow = not load_kernels().multiplies_bfloat16
    assert model.info.compute_path.endswith("float32 is faster, in twice the memory") == is_slow
