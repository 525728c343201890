"""What an EAGLE-3 head's files say of it: where it reads its model, and of which kind it is."""

import pytest

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.files.eagle3_files import check_kind, depths_of, layer_of, own_vocabulary
from dormouse_worker.files.eagle_files import as_model_config

NAME = "eagle_aux_hidden_state_layer_ids"


@pytest.mark.parametrize(
    ("config", "depths"),
    [
        ({}, (2, 16, 29)),
        ({NAME: [0, 5, 32]}, (0, 5, 32)),
        ({"eagle_config": {NAME: [-1, 5, 31]}}, (0, 6, 32)),
        ({NAME: [1, 2], "eagle_config": {NAME: [7, 8]}}, (1, 2)),
        ({NAME: None, "eagle_config": None}, (2, 16, 29)),
    ],
)
def test_it_reads_behind_the_layers_that_its_configuration_names_or_those_of_the_first_heads(config, depths):
    assert depths_of(config, 32) == depths


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({NAME: [0, 1, 33]}, f"{NAME} is [0, 1, 33], and the model has 32 layers"),
        ({NAME: [0, -1]}, f"{NAME} is [0, -1]"),
        ({NAME: [0, 1.0]}, f"{NAME} is [0, 1.0]"),
        ({NAME: [True, 2]}, f"{NAME} is [True, 2]"),
        ({NAME: [1]}, "at 2 to 33 places"),
        ({NAME: [1] * 34}, "at 2 to 33 places"),
        ({NAME: "0,1"}, f"{NAME} is '0,1'"),
        ({"eagle_config": {NAME: [0, 32]}}, f"eagle_config.{NAME} is [0, 32]"),
        ({"eagle_config": {NAME: 3}}, f"eagle_config.{NAME} is 3"),
    ],
)
def test_layers_that_the_model_has_not_are_refused_by_name(config, named):
    with pytest.raises(InvalidSettings) as refused:
        depths_of(config, 32)
    assert named in str(refused.value)


def test_a_model_of_few_layers_has_none_where_the_first_heads_read():
    assert depths_of({}, 4) == (2, 2, 1)
    with pytest.raises(InvalidSettings) as refused:
        depths_of({}, 2)
    assert f"without {NAME}, what it reads is behind [2, 1, -1] layers, and the model has 2" in str(refused.value)


@pytest.mark.parametrize(
    ("names", "layer"),
    [
        (["fc.weight", "layers.0.mlp.up_proj.weight"], None),
        (["fc.weight", "midlayer.mlp.up_proj.weight"], "midlayer."),
        (["fc.weight", "layers.0.hidden_norm.weight"], "layers.0."),
        (["d2t", "layers.0.mlp.up_proj.weight"], "layers.0."),
    ],
)
def test_its_tensors_show_of_which_kind_it_is(names, layer):
    assert layer_of(names) == layer


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"norm_before_residual": True}, "norm_before_residual is true"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is false"),
        ({"hidden_size": 8, "target_hidden_size": 16}, "target_hidden_size is 16 and hidden_size 8"),
    ],
)
def test_a_head_that_computes_otherwise_is_refused_by_name(config, named):
    check_kind({"hidden_size": 8, "target_hidden_size": 8, "norm_before_residual": False})
    with pytest.raises(InvalidSettings, match=named):
        check_kind(config)


@pytest.mark.parametrize("size", [0, 101, -1, 1.5, True, "64"])
def test_its_vocabulary_is_a_part_of_the_models(size):
    assert own_vocabulary({}, 100) == 100
    assert own_vocabulary({"draft_vocab_size": 64}, 100) == 64
    with pytest.raises(InvalidSettings, match="the model's vocab_size is 100"):
        own_vocabulary({"draft_vocab_size": size}, 100)


@pytest.mark.parametrize("name", ["LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "EagleLlamaForCausalLM"])
def test_its_configuration_is_read_as_that_of_a_model_of_one_layer(name):
    said = as_model_config({"architectures": [name], "draft_vocab_size": 5, "hidden_size": 8})
    assert said == {"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "rope_theta": 10_000.0}
    assert as_model_config({"rope_parameters": {}}) == {"rope_parameters": {}}
