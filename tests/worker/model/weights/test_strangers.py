"""Tensors that config.json does not ask for: refused by name, or known to be harmless."""

import json
import logging

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.device.testing import FakeDevice
from dormouse_worker.model.loader import load
from dormouse_worker.model.testing import write_tiny_model
from dormouse_worker.model.weights.sharded import save_sharded_state

Q_PROJ = "model.layers.0.self_attn.q_proj"


@pytest.fixture
def load_from():
    """Return a function (directory, layout, settings) → loaded model, whose memory goes in the end."""
    models = []

    def load_one(directory, layout=None, **settings):
        models.append(load(EngineSettings(model=str(directory), block_size=4, **settings), FakeDevice(), layout))
        return models[-1]

    yield load_one
    for model in models:
        model.weights.close()


def add_tensors(directory, **tensors):
    file = directory / "model.safetensors"
    save_file({**load_file(file), **tensors}, file, {"format": "pt"})
    return directory


def edit_config(directory, **fields):
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
    return directory


def assert_refused(load_from, directory, *words, layout=None, **settings):
    with pytest.raises(ModelInvalid) as caught:
        load_from(directory, layout, **settings)
    message = str(caught.value)
    assert not [word for word in (str(directory), *words) if word not in message], message


@pytest.mark.parametrize(
    "layout", [None, Layout(tensor=2), Layout(rank=1, pipeline=2)], ids=["alone", "slices", "stage"]
)
def test_biases_of_a_file_whose_configuration_lost_them_are_refused(tmp_path, load_from, layout):
    directory = write_tiny_model(tmp_path, attention_bias=True)
    edit_config(directory, attention_bias=False)
    assert_refused(
        load_from,
        directory,
        "model.layers.0.self_attn.k_proj.bias",
        "model.safetensors",
        "attention_bias",
        layout=layout,
    )


@pytest.mark.parametrize("architecture", ["llama", "mixtral"])
def test_layers_beyond_those_of_the_configuration_are_refused(tmp_path, load_from, architecture):
    directory = write_tiny_model(tmp_path, architecture, num_hidden_layers=4)
    edit_config(directory, num_hidden_layers=2)
    assert_refused(load_from, directory, "model.layers.2.", "model.safetensors", "num_hidden_layers is 2")


def test_a_file_whose_names_lack_the_models_prefix_is_checked_alike(tmp_path, load_from):
    """As gpt2 lies on the hub."""
    directory = write_tiny_model(tmp_path, "gpt2", n_layer=3)
    file = directory / "model.safetensors"
    save_file({name.removeprefix("transformer."): t for name, t in load_file(file).items()}, file, {"format": "pt"})
    load_from(directory)
    edit_config(directory, n_layer=2)
    assert_refused(load_from, directory, "h.2.", "model.safetensors", "num_hidden_layers is 2")


@pytest.mark.parametrize("architecture", ["llama", "mixtral"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn])
def test_integers_and_8_bit_floats_for_a_float_parameter_are_refused(tmp_path, load_from, architecture, dtype):
    directory = write_tiny_model(tmp_path, architecture)
    add_tensors(directory, **{f"{Q_PROJ}.weight": torch.ones(32, 32).to(dtype)})
    assert_refused(load_from, directory, f"{Q_PROJ}.weight", "model.safetensors", "quantization_config")


@pytest.mark.parametrize("architecture", ["llama", "mixtral"])
@pytest.mark.parametrize("name", ["weight_scale_inv", "qweight", "g_idx", "absmax"])
def test_parts_of_a_quantized_weight_tell_that_the_configuration_lost_its_quantization(
    tmp_path, load_from, architecture, name
):
    directory = add_tensors(write_tiny_model(tmp_path, architecture), **{f"{Q_PROJ}.{name}": torch.ones(1)})
    assert_refused(load_from, directory, f"{Q_PROJ}.{name}", "quantization_config")


def test_a_sharded_state_with_a_tensor_too_many_is_refused(tmp_path, load_from):
    model = load_from(write_tiny_model(tmp_path / "model"))
    save_sharded_state(model.weights, tmp_path / "model", tmp_path / "saved")
    file = next((tmp_path / "saved").glob("*.safetensors"))
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    save_file({**load_file(file), f"{Q_PROJ}.bias": torch.ones(32)}, file, metadata)
    assert_refused(load_from, tmp_path / "saved", f"{Q_PROJ}.bias", load_format="sharded_state")


HARMLESS = {
    "llama": {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
        "model.rotary_emb.inv_freq": torch.ones(4),
        "model.layers.1.self_attn.k_scale": torch.ones(1),
        "model.layers.1.self_attn.k_proj.k_scale": torch.tensor(1.0),
        "model.embed_tokens._extra_state": torch.ones(3, dtype=torch.uint8),
        "model.mtp_layers.0.hnorm.weight": torch.ones(32),
    },
    "gpt2": {
        "transformer.h.0.attn.bias": torch.ones(1, 1, 128, 128, dtype=torch.bool),
        "transformer.h.0.attn.masked_bias": torch.tensor(-1e4),
        "transformer.position_ids": torch.arange(128),
    },
    "gpt_bigcode": {"transformer.h.0.attn.bias": torch.ones(1, 1, 128, 128, dtype=torch.uint8)},
    "gpt_neox": {
        "gpt_neox.layers.0.attention.bias": torch.ones(1, 1, 128, 128, dtype=torch.bool),
        "gpt_neox.layers.0.attention.masked_bias": torch.tensor(-1e9),
        "gpt_neox.layers.0.attention.rotary_emb.inv_freq": torch.ones(4),
    },
    "mixtral": {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)},
    "deepseek_v3": {
        "model.layers.61.eh_proj.weight": torch.ones(32, 64),
        "model.layers.61.self_attn.q_a_proj.weight": torch.ones(8, 32, dtype=torch.int8),
    },
}


@pytest.mark.parametrize("architecture", HARMLESS)
def test_what_files_of_the_hub_carry_beside_the_weights_does_no_harm(tmp_path, load_from, architecture):
    load_from(add_tensors(write_tiny_model(tmp_path, architecture), **HARMLESS[architecture]))


def test_a_learned_bias_is_no_mask_whatever_its_name(tmp_path, load_from):
    directory = add_tensors(write_tiny_model(tmp_path, "qwen3"), **{"model.layers.0.self_attn.bias": torch.ones(32)})
    assert_refused(load_from, directory, "model.layers.0.self_attn.bias")


def test_layers_that_predict_further_tokens_do_no_harm_where_the_configuration_counts_them(tmp_path, load_from):
    directory = add_tensors(write_tiny_model(tmp_path), **{"model.layers.2.eh_proj.weight": torch.ones(32, 64)})
    assert_refused(load_from, directory, "model.layers.2.eh_proj.weight")
    load_from(edit_config(directory, num_nextn_predict_layers=1))


@pytest.mark.parametrize(
    "name", ["visual.blocks.0.weight", "model.vision_tower.layers.0.weight", "v_head.summary.bias"]
)
def test_parts_beside_the_language_model_are_left_alone_and_told(tmp_path, load_from, caplog, name):
    directory = add_tensors(write_tiny_model(tmp_path), **{name: torch.ones(3, dtype=torch.int8)})
    with caplog.at_level(logging.WARNING):
        assert load_from(directory).load_report.path == "fast"
    assert f"1 tensors of the files are not part of LlamaForCausalLM and stay unused: {name}" in caplog.text


@pytest.mark.parametrize("architecture", ["llama", "mixtral", "gpt_neox"])
def test_a_tensor_of_another_shape_is_told_with_both_shapes(tmp_path, load_from, architecture):
    directory = write_tiny_model(tmp_path, architecture)
    edit_config(directory, vocab_size=250)
    assert_refused(load_from, directory, "model.safetensors: tensor ", "[260, 32]", "[250, 32]")


def test_experts_of_another_shape_are_told_with_their_names(tmp_path, load_from):
    directory = edit_config(write_tiny_model(tmp_path, "mixtral"), intermediate_size=56)
    assert_refused(load_from, directory, "layers.0.mlp.experts.down_proj is [4, 32, 48]", "[4, 32, 56]")


def test_an_expert_that_does_not_fit_the_others_is_told_with_its_name(tmp_path, load_from):
    directory = write_tiny_model(tmp_path, "mixtral")
    names = [name for name in load_file(directory / "model.safetensors") if "layers.0" in name and "experts.1." in name]
    add_tensors(directory, **{names[0]: torch.ones(7, 9)})
    assert_refused(load_from, directory, "model.layers.0.mlp.experts", "cannot be converted")
