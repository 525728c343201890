"""What both sides of an encoder-decoder may be, and what it is not combined with: refused by name, with the numbers."""

from types import SimpleNamespace

import pytest

from dormouse_worker.common.errors import InvalidSettings, ModelInvalid
from dormouse_worker.common.host import Host
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.sides import Sides
from dormouse_worker.files.task_files import task_of
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.encoder_decoder.load import resolve_sides
from dormouse_worker.model.loader import load
from dormouse_worker.model.testing_sides import write_two_sided

T5 = {"vocab_size": 100, "n_positions": 100}
BART = {"vocab_size": 100, "max_position_embeddings": 100}
START = {"decoder_start_token_id": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return a model's directory that nobody changes."""
    return write_two_sided(tmp_path_factory.mktemp("bart"), "bart")


def resolve(config, generation, **settings):
    fields = {"model": "m", "max_num_batched_tokens": 128, **settings}
    return resolve_sides(SimpleNamespace(**config), EngineSettings(**fields), generation)


@pytest.mark.parametrize(
    ("config", "settings", "sides", "longest"),
    [
        (T5, {}, Sides((2,), 128, 212), 212),  # it was made for so many; nothing ends there
        (T5, {"max_model_len": 64}, Sides((2,), 48, 64), 64),
        (T5, {"max_model_len": 1000}, Sides((2,), 128, 1000), 1000),
        (BART, {}, Sides((2,), 100, 100), 212),
        (BART, {"max_model_len": 64}, Sides((2,), 48, 64), 64),
        (BART, {"max_num_batched_tokens": 60}, Sides((2,), 48, 100), 212),
    ],
)
def test_each_side_has_its_limit(config, settings, sides, longest):
    assert resolve(config, START, **settings) == (sides, longest)


@pytest.mark.parametrize(
    ("config", "generation", "opening"),
    [
        (T5, {"decoder_start_token_id": 0}, (0,)),
        ({**T5, "decoder_start_token_id": 3}, {}, (3,)),
        (T5, {"bos_token_id": 4}, (4,)),
        (BART, {**START, "forced_bos_token_id": 7}, (2, 7)),
        ({**BART, "forced_bos_token_id": 7}, {**START, "forced_bos_token_id": None}, (2,)),
    ],
)
def test_answers_begin_as_the_files_say(config, generation, opening):
    assert resolve(config, generation)[0].opening == opening


def test_words_that_the_files_forbid_are_forbidden():
    sides, _ = resolve(T5, {**START, "bad_words_ids": [[5], [6, 7], [], "x"]})
    assert sides.bad_words_token_ids == ((5,), (6, 7))


@pytest.mark.parametrize(
    ("config", "generation", "settings", "error", "words"),
    [
        ({"vocab_size": 9}, START, {}, InvalidSettings, "no max_position_embeddings or n_positions; set maxModelLen"),
        (BART, START, {"max_model_len": 213}, InvalidSettings, "maxModelLen is 213; .* have 100 tokens each, 212 tog"),
        (T5, START, {"max_model_len": 17}, InvalidSettings, "maxModelLen is 17 and .* a block of 16 .*, and 2 follow"),
        (T5, START, {"max_num_batched_tokens": 15}, InvalidSettings, "max_num_batched_tokens is 15; a prompt takes"),
        (T5, {}, {}, ModelInvalid, r"decoder_start_token_id and forced_bos_token_id, \(\); needed are one or two"),
        (T5, {"decoder_start_token_id": 100}, {}, ModelInvalid, r"\(100,\); .* below the vocabulary size 100"),
        (T5, {**START, "forced_bos_token_id": -1}, {}, ModelInvalid, r"\(2, -1\)"),
    ],
)
def test_what_leaves_no_room_is_refused(config, generation, settings, error, words):
    with pytest.raises(error, match=words):
        resolve(config, generation, **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tensor_parallel_size": 2}, "pipeline_parallel_size is 2; allowed is 1"),
        ({"quantization": "int8"}, "quantization is int8; allowed is none"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype is fp8; allowed is auto"),
        ({"compile_sizes": (1,)}, "compile_sizes is set"),
        ({"model_impl": "lean"}, "model_impl is lean"),
        ({"attention_backend": "sdpa"}, "attention_backend is sdpa"),
        ({"enable_lora": True}, "enable_lora is set"),
        ({"speculation_method": "suffix"}, "speculation_method is suffix"),
        ({"kv_store_dir": "/tmp/x"}, "kv_store_dir is '/tmp/x'"),
    ],
)
def test_what_is_not_combined_is_refused_by_name(model, settings, words):
    layout = Layout(settings.get("tensor_parallel_size", 1), 1, 0)
    with pytest.raises(InvalidSettings, match=f"{words}.* where an encoder reads its prompts .bart."):
        load(EngineSettings(model=str(model), **settings), CpuDevice(Host()), layout)


def test_a_decoder_with_a_vocabulary_of_its_own_is_refused(tmp_path):
    path = write_two_sided(tmp_path, "marian", decoder_vocab_size=300, share_encoder_decoder_embeddings=False)
    with pytest.raises(InvalidSettings, match="decoder_vocab_size differs from vocab_size"):
        load(EngineSettings(model=str(path)), CpuDevice(Host()))


@pytest.mark.parametrize("name", ["MarianMTModel", "T5ForConditionalGeneration"])
def test_its_task_is_to_generate(tmp_path, name):
    assert task_of(EngineSettings(model=str(tmp_path)), {"architectures": [name]}) == "generate"
