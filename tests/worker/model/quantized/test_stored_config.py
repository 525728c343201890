"""What a quantization_config says is read, left to transformers, or refused by name; whatever stands in it."""

import copy
import json
import random

import pytest

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.model.quantized.stored_config import read_kind, without_own
from dormouse_worker.model.quantized.stored_kinds import Awq, Gptq, Packed, Scaled, Unreadable
from tests.worker.model.quantized.checkpoints import KINDS, compressed

GPTQ, AWQ = KINDS["gptq"][0], KINDS["awq"][0]


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (GPTQ, Gptq(4, 16, 1)),
        (KINDS["gptq v2"][0], Gptq(4, -1, 0)),
        (AWQ, Awq(16)),
        ({"quant_method": "awq"}, Awq(128)),
        (KINDS["w4a16"][0], Packed(4, 16, is_symmetric=True, is_ordered=False)),
        (KINDS["w8a8"][0], Scaled("I8", "compressed-tensors", "weight_scale")),
        (KINDS["fp8"][0], Scaled("F8_E4M3", "fp8", "weight_scale")),
        (KINDS["fp8 of blocks"][0], Scaled("F8_E4M3", "fp8", "weight_scale_inv", (12, 24))),
        (
            compressed("float", 8, "float-quantized", strategy="block", block_structure=[128, 128]),
            Scaled("F8_E4M3", "compressed-tensors", "weight_scale", (128, 128)),
        ),
        (None, None),
        ("gptq", None),
        ({"quant_method": "torchao"}, None),
    ],
)
def test_a_configuration_is_a_kind_or_transformers_own(config, kind):
    assert read_kind(config) == kind


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**GPTQ, "bits": 3}, "says bits 3; read are 4 or 8"),
        ({**GPTQ, "bits": True}, "says bits True; read are 4 or 8"),
        ({**GPTQ, "group_size": 0}, "says group_size 0; read are -1 or 1 to 65536"),
        ({**GPTQ, "group_size": "128"}, "says group_size 128; read are"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "says checkpoint_format marlin; read are gptq or gptq_v2"),
        ({**GPTQ, "desc_act": "yes"}, "says desc_act yes; read are None or True or False"),
        ({**AWQ, "version": "gemv"}, "says version gemv; read are gemm"),
        ({**AWQ, "zero_point": False}, "says zero_point False; read are True"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "says fmt e5m2; read are e4m3"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, r"says weight_block_size \[128\]; read are two sizes"),
        ({"quant_method": "fp8", "weight_block_size": [128, 1 << 40]}, "read are two sizes from 1 to 65536: use"),
        (
            {**KINDS["w4a16"][0], "transform_config": {"config_groups": {"R4": {}}}},
            "says transform_config .*read are none",
        ),
        ({"quant_method": "compressed-tensors"}, "says config_groups 0 groups; read are one group"),
        (compressed("int", 4, "marlin-24"), "says format marlin-24; read are pack-quantized or int-quantized"),
        (compressed("float", 4, "nvfp4-pack-quantized"), "says format nvfp4-pack-quantized"),
        (compressed("int", 2, "pack-quantized"), "says num_bits 2; read are 4 or 8"),
        (compressed("float", 8, "int-quantized"), "says type float; read are int"),
        (compressed("int", 8, "int-quantized", strategy="group", group_size=8), "says strategy group; read are tensor"),
        (compressed("int", 8, "int-quantized", strategy="block"), "says block_structure None; read are two sizes"),
    ],
)
def test_what_is_not_read_is_refused_by_name(config, words):
    with pytest.raises(ModelInvalid, match=words):
        read_kind(config)


def test_what_we_read_asks_nothing_of_a_device():
    other = {"dtype": "float16", "quantization_config": {"quant_method": "nvfp4"}}
    assert without_own({"dtype": "float16", "quantization_config": AWQ}) == {"dtype": "float16"}
    assert without_own(other) == other


ODD = [None, True, -1, 0, 3, 1 << 62, 0.5, "", "x" * 200, [], [0], [1 << 62, 2], {}, {"a": []}, "group", 16]


def mutated(config, rng):
    """Return a configuration with some values replaced, taken out or added, at any depth."""
    changed = copy.deepcopy(config)
    for _ in range(rng.randint(1, 3)):
        place = changed
        while True:
            name = rng.choice([*place, "added"])
            inner = place.get(name)
            if not isinstance(inner, dict) or not inner or rng.random() < 0.3:
                break
            place = inner
        if rng.random() < 0.2:
            place.pop(name, None)
        else:
            place[name] = rng.choice(ODD)
    return changed


def test_ten_thousand_odd_configurations_are_read_or_refused():
    rng, configs = random.Random(7), [json.loads(json.dumps(said)) for said, _ in KINDS.values()]
    outcomes = {"read": 0, "refused": 0}
    for number in range(10_000):
        config = mutated(configs[number % len(configs)], rng)
        try:
            kind = read_kind(config)
            if kind is not None:
                kind.parts(rng.choice([1, 8, 4096]), rng.choice([1, 16, 4096]))
            outcomes["read"] += 1
        except (ModelInvalid, Unreadable):
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 1000, outcomes
