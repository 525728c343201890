"""A checkpoint's head for multi-token prediction: whose is read, and what its tensors are called."""

from __future__ import annotations

import pytest

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.files.mtp_files import check_mtp, is_float32, stored_parts


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"model_type": "qwen3_next"}, "model_type is 'qwen3_next'; read are the heads of deepseek_v3 and glm4_moe"),
        ({}, "model_type is None"),
        ({"model_type": "glm4_moe"}, "num_nextn_predict_layers is None; read are heads of 1 layer"),
        ({"model_type": "glm4_moe", "num_nextn_predict_layers": 3}, "num_nextn_predict_layers is 3"),
    ],
)
def test_heads_that_are_not_read_are_named(config, named):
    check_mtp({"model_type": "deepseek_v3", "num_nextn_predict_layers": 1})
    with pytest.raises(InvalidSettings) as refused:
        check_mtp(config)
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("name", "shape", "parts"),
    [
        ("eh_proj.weight", (4, 8), {"eh_proj.weight": (4, 8)}),
        ("post_norm.weight", (4,), {"shared_head.norm.weight": (4,)}),
        ("mtp_block.post_attention_layernorm.weight", (4,), {"post_attention_layernorm.weight": (4,)}),
        ("mtp_block.mlp.shared_experts.down_proj.weight", (4, 6), {"mlp.shared_experts.down_proj.weight": (4, 6)}),
        (
            "mtp_block.mlp.experts.gate_up_proj",
            (2, 6, 4),
            {f"mlp.experts.{i}.{part}_proj.weight": (3, 4) for i in (0, 1) for part in ("gate", "up")},
        ),
        (
            "mtp_block.mlp.experts.down_proj",
            (2, 4, 3),
            {f"mlp.experts.{i}.down_proj.weight": (4, 3) for i in (0, 1)},
        ),
    ],
)
def test_what_a_module_joins_are_several_tensors_in_order(name, shape, parts):
    assert list(stored_parts(name, shape).items()) == list(parts.items())


def test_a_routers_bias_alone_is_float32_whatever_the_model_computes_in():
    assert is_float32("model.layers.61.mlp.gate.e_score_correction_bias")
    assert not is_float32("model.layers.61.mlp.gate.weight")
