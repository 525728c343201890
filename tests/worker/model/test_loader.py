"""Loading: which weights, which length, which cache, and which models are refused."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, Phi3Config, PhimoeConfig

from dormouse_worker.common.errors import (
    CustomCodeRefused,
    InsufficientMemory,
    InvalidSettings,
    ModelInvalid,
    ModelNotFound,
)
from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.loader import load, resolve_max_model_len
from dormouse_worker.model.testing import MAX_POSITIONS, VOCAB_SIZE, write_tiny_model

CPU = CpuDevice(Host())
SMALL = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48}


def load_tiny(directory, **overrides):
    return load(EngineSettings(model=str(directory), block_size=4, **overrides), CPU)


def edit_config(directory, **fields):
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def test_the_cache_is_made_for_what_the_layers_bring(tiny_model):
    model = load_tiny(tiny_model("llama"))
    assert model.cache_spec.block_bytes == 2 * 4 * 2 * (8 + 8) * 4  # layers, tokens, heads, key + value, float32
    assert (model.max_model_len, model.vocab_size) == (MAX_POSITIONS, VOCAB_SIZE)


def test_half_precision_halves_the_weights_and_the_cache(tiny_model):
    whole, half = load_tiny(tiny_model("llama")), load_tiny(tiny_model("llama"), dtype="bfloat16")
    assert half.info.dtype == "bfloat16"
    assert half.cache_spec.block_bytes * 2 == whole.cache_spec.block_bytes
    assert half.weights_bytes < 0.51 * whole.weights_bytes


def test_tied_weights_are_counted_once(tmp_path):
    tied = load_tiny(write_tiny_model(tmp_path / "tied", tie_word_embeddings=True))
    loose = load_tiny(write_tiny_model(tmp_path / "loose", tie_word_embeddings=False))
    assert loose.weights_bytes - tied.weights_bytes == VOCAB_SIZE * 32 * 4


def test_weights_do_not_lie_in_the_mapped_file(tmp_path):
    """Else truncating the file later would end the process by a signal."""
    model = load_tiny(write_tiny_model(tmp_path))
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert model.weights_bytes == sum(t.nbytes for t in (*model.module.parameters(), *model.module.buffers()))


def test_random_weights_depend_on_the_seed_alone(tiny_model):
    directory = tiny_model("llama")
    first, same, other = (load_tiny(directory, load_format="dummy", seed=seed) for seed in (1, 1, 2))
    weights = [model.module.lm_head.weight for model in (first, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(("wanted", "limit"), [(0, 128), (100, 100), (128, 128)])
def test_the_model_length_is_the_wanted_one_or_the_models_own(wanted, limit):
    assert resolve_max_model_len(LlamaConfig(max_position_embeddings=128), wanted) == limit


def test_a_length_above_the_models_own_is_refused_with_both_numbers():
    with pytest.raises(InvalidSettings, match=r"maxModelLen 129 is above .* 128"):
        resolve_max_model_len(LlamaConfig(max_position_embeddings=128), 129)


def test_frequencies_that_change_beyond_a_length_end_the_model_there():
    """The change would be for a whole batch at once, and keys in the cache would keep the old frequencies."""
    longrope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
    }
    config = Phi3Config(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=128,
        original_max_position_embeddings=32,
        rope_parameters=longrope,
        pad_token_id=0,
    )
    assert resolve_max_model_len(config, 0) == 32
    with pytest.raises(InvalidSettings, match=r"maxModelLen 33 is above .* 32"):
        resolve_max_model_len(config, 33)


def test_a_window_that_only_the_masks_have_ends_the_model_where_it_begins_to_hide():
    config = PhimoeConfig(max_position_embeddings=128, sliding_window=32)
    assert resolve_max_model_len(config, 0) == 32
    assert resolve_max_model_len(PhimoeConfig(max_position_embeddings=128, sliding_window=None), 0) == 128


def test_a_model_without_a_length_needs_the_setting():
    config = SimpleNamespace(get_text_config=SimpleNamespace)
    assert resolve_max_model_len(config, 77) == 77
    with pytest.raises(InvalidSettings, match="set maxModelLen"):
        resolve_max_model_len(config, 0)


def test_a_missing_directory_is_not_found(tmp_path):
    with pytest.raises(ModelNotFound):
        load_tiny(tmp_path / "nowhere")


@pytest.mark.parametrize("architecture", ["phi3", "deepseek_v3"])
def test_code_beside_a_model_that_transformers_has_is_left_alone(tmp_path, architecture):
    directory = write_tiny_model(tmp_path, architecture)
    (directory / "modeling_x.py").write_text("raise SystemExit('this must never run')")
    names = {"AutoConfig": "modeling_x.C", "AutoModelForCausalLM": "modeling_x.M", "AutoModel": "modeling_x.B"}
    edit_config(directory, auto_map=names)
    assert type(load_tiny(directory).module).__module__.startswith("transformers.models.")


def test_a_model_that_only_the_code_beside_it_can_compute_is_refused(tmp_path):
    directory = write_tiny_model(tmp_path)
    edit_config(directory, auto_map={"AutoModelForCausalLM": "modeling.Evil"}, model_type="evil")
    with pytest.raises(CustomCodeRefused, match=r"config.json: auto_map .* never run, and .* no model_type 'evil'"):
        load_tiny(directory)


@pytest.mark.parametrize("fields", [{"model_type": "unheard_of"}, {"hidden_size": "wide"}, {"model_type": "vit"}])
def test_a_configuration_that_transformers_can_not_read_is_invalid(tmp_path, fields):
    directory = write_tiny_model(tmp_path)
    edit_config(directory, **fields)
    with pytest.raises(ModelInvalid, match=str(tmp_path)):
        load_tiny(directory)


def test_weights_of_another_shape_are_invalid(tmp_path):
    directory = write_tiny_model(tmp_path)
    edit_config(directory, intermediate_size=56)
    with pytest.raises(ModelInvalid, match=str(tmp_path)):
        load_tiny(directory)


def test_weights_of_another_model_are_invalid(tmp_path):
    directory = write_tiny_model(tmp_path)
    edit_config(directory, num_hidden_layers=3)
    with pytest.raises(ModelInvalid, match=r"weights that config.json asks for are missing: model\.layers\.2"):
        load_tiny(directory)


def test_a_sliding_window_that_attention_does_not_see_is_refused(tmp_path):
    """Else such a layer would attend to too much, silently."""
    directory = write_tiny_model(tmp_path)
    edit_config(directory, layer_types=["full_attention", "sliding_attention"])
    with pytest.raises(ModelInvalid, match="layer 1 hides its sliding window"):
        load_tiny(directory)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "bloom"}, "bloom needs position biases .*ALiBi"),
        ({"model_type": "mpt"}, "mpt needs position biases .*ALiBi"),
        ({"model_type": "falcon", "alibi": True}, "falcon needs position biases .*ALiBi"),
        ({"model_type": "longt5"}, "longt5 needs attention to the output of an encoder"),
        ({"model_type": "led"}, "led needs attention to the output of an encoder"),
        ({"model_type": "mamba"}, "mamba needs layers of type linear_attention"),
        ({"model_type": "falcon", **SMALL}, "its attention is code of its own"),
        ({"model_type": "gptj", "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4}, "attention is code of its"),
        ({"model_type": "xglm", "d_model": 32, "num_layers": 2, "attention_heads": 4}, "0 of 2 layers use"),
        ({"model_type": "bert", **SMALL}, "attention that is not causal"),
        ({"model_type": "bart", "d_model": 32, "is_encoder_decoder": False}, "BartForCausalLM takes no position_ids"),
        ({"model_type": "roberta", "is_decoder": True, **SMALL}, "RobertaForCausalLM counts .* pad_token_id"),
        ({"model_type": "xlm-roberta", "is_decoder": True, **SMALL}, "XLMRobertaForCausalLM counts"),
        ({"model_type": "camembert", "is_decoder": True, **SMALL}, "CamembertForCausalLM counts"),
        ({"model_type": "data2vec-text", "is_decoder": True, **SMALL}, "Data2VecTextForCausalLM counts"),
        ({"model_type": "diffllama", **SMALL}, "layer 0 attends twice"),
        ({"model_type": "olmoe", "num_experts": 4, **SMALL}, "does not run on a paged cache: selected index"),
    ],
)
def test_an_architecture_that_does_not_fit_the_paged_cache_is_refused(tmp_path, config, message):
    ids = {"vocab_size": VOCAB_SIZE, "bos_token_id": 0, "eos_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps({**config, **ids}))
    with pytest.raises(ModelInvalid, match=message):
        load_tiny(tmp_path, load_format="dummy", max_model_len=32)


def test_weights_that_do_not_fit_into_memory_are_told_as_such(tmp_path):
    """A configuration of a petabyte: the allocator refuses at once."""
    directory = write_tiny_model(tmp_path)
    edit_config(directory, vocab_size=1 << 45)
    with pytest.raises((InsufficientMemory, ModelInvalid), match=str(tmp_path)):
        load_tiny(directory, load_format="dummy")


def test_layers_that_the_cache_does_not_know_are_refused(tmp_path):
    directory = write_tiny_model(tmp_path, "qwen3")
    edit_config(directory, layer_types=["full_attention", "linear_attention"])
    with pytest.raises(ModelInvalid, match="linear_attention"):
        load_tiny(directory)
