"""What a device refuses before anything is loaded, by table."""

import pytest

from dormouse_worker.common.errors import InvalidSettings, WrongDevice
from dormouse_worker.model.device.check import (
    ANY,
    DTYPE_CAPABILITY,
    QUANTIZERS,
    check_device,
    find_quantizer,
    require_device,
    resolve_dtype,
)

NAME = "GPU-1"
T4, A100, L4, H100, B200 = (7, 5), (8, 0), (8, 9), (9, 0), (10, 0)


def quantized(method, **fields):
    return {"dtype": "float16", "quantization_config": {"quant_method": method, **fields}}


TORCHAO_FP8 = quantized("torchao", quant_type={"default": {"_type": "Float8WeightOnlyConfig"}})
TORCHAO_INT4 = {
    **quantized("torchao", quant_type={"default": {"_type": "Int4WeightOnlyConfig"}}),
    "dtype": "bfloat16",
}
TORCHAO_INT8 = quantized("torchao", quant_type={"default": {"_type": "Int8WeightOnlyConfig"}})


@pytest.mark.parametrize(
    ("capability", "dtype", "config"),
    [
        (A100, "bfloat16", {}),
        (A100, "auto", {"dtype": "bfloat16"}),
        (T4, "float16", {"dtype": "bfloat16"}),
        (T4, "float32", {}),
        (T4, "auto", {}),
        (None, "bfloat16", quantized("nvfp4")),
        (T4, "auto", quantized("awq")),
        (T4, "auto", {**quantized("awq"), "dtype": "bfloat16"}),
        (L4, "auto", quantized("fp8")),
        (H100, "auto", quantized("fbgemm_fp8")),
        (B200, "auto", quantized("nvfp4")),
        (T4, "auto", quantized("bitsandbytes", load_in_8bit=True)),
        ((6, 1), "auto", quantized("bitsandbytes", load_in_4bit=True)),
        (T4, "auto", TORCHAO_INT8),
        (A100, "auto", TORCHAO_INT4),
        (L4, "auto", TORCHAO_FP8),
        (T4, "float16", quantized("a method that nobody here knows")),
    ],
)
def test_what_a_device_can_compute_passes(capability, dtype, config):
    check_device(NAME, capability, dtype, config)


@pytest.mark.parametrize(
    ("capability", "dtype", "config", "words"),
    [
        (T4, "bfloat16", {}, "GPU-1 has compute capability 7.5, bfloat16 needs 8.0; set dtype to float16, or"),
        (T4, "auto", {"dtype": "bfloat16"}, "bfloat16 needs 8.0"),
        (T4, "auto", {"torch_dtype": "torch.bfloat16"}, "bfloat16 needs 8.0"),
        (T4, "auto", {"text_config": {"dtype": "bfloat16"}}, "bfloat16 needs 8.0"),
        ((7, 0), "auto", quantized("awq"), "capability 7.0, weights quantized by awq need 7.5; use a newer GPU"),
        (A100, "bfloat16", quantized("awq"), "dtype is bfloat16, .* awq compute in float16; set dtype to float16"),
        (A100, "float32", quantized("gptq"), "compute in float16 or bfloat16; set dtype to float16"),
        (A100, "auto", quantized("fp8"), "capability 8.0, weights quantized by fp8 need 8.9"),
        (L4, "auto", quantized("fbgemm_fp8"), "need 9.0"),
        (H100, "float16", quantized("fbgemm_fp8"), "set dtype to bfloat16"),
        (H100, "auto", quantized("nvfp4"), "need 10.0"),
        ((7, 0), "auto", quantized("bitsandbytes", load_in_8bit=True), "bitsandbytes_8bit need 7.5"),
        (A100, "auto", TORCHAO_FP8, "torchao_float8 need 8.9"),
        (T4, "auto", TORCHAO_INT4, "torchao_int4 need 8.0"),
        (A100, "auto", {"text_config": quantized("fp8")}, "fp8 need 8.9"),
    ],
)
def test_what_it_can_not_compute_is_refused_with_numbers_and_knob(capability, dtype, config, words):
    with pytest.raises(InvalidSettings, match=words):
        check_device(NAME, capability, dtype, config)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({}, ""),
        ({"quantization_config": None, "text_config": 7}, ""),
        ({"quantization_config": {"load_in_4bit": True}}, "bitsandbytes_4bit"),
        (TORCHAO_INT8, "torchao"),
        (TORCHAO_INT4, "torchao_int4"),
        (quantized("compressed-tensors"), "compressed-tensors"),
    ],
)
def test_quantizers_are_told_apart_where_their_needs_differ(config, name):
    assert find_quantizer(config) == name


def test_a_quantizers_own_dtype_is_chosen_where_nobody_names_another():
    assert resolve_dtype("auto", {**quantized("awq"), "dtype": "bfloat16"}) == "float16"
    assert resolve_dtype("auto", quantized("gptq")) == "float16"
    assert resolve_dtype("bfloat16", quantized("awq")) == "bfloat16"


@pytest.mark.parametrize("name", QUANTIZERS)
def test_every_quantizers_oldest_device_computes_in_one_of_its_dtypes(name):
    needs = QUANTIZERS[name]
    assert any(DTYPE_CAPABILITY.get(dtype, ANY) <= needs.capability for dtype in needs.dtypes or ("float16",))


@pytest.mark.parametrize(
    "expected", ["", "GPU-1", "GPU-2,GPU-1", "GPU-2, GPU-1", "MIG-1", "gpu-7-of-node", "GPU-2,gpu-7"]
)
def test_the_expected_device_or_one_that_can_not_be_compared_is_taken(expected):
    require_device("GPU-1", expected)
    require_device("cpu", expected)


@pytest.mark.parametrize("expected", ["GPU-2", "MIG-2", "GPU-2,GPU-3"])
def test_another_device_than_expected_is_named_with_it(expected):
    with pytest.raises(WrongDevice, match=f"sees the device GPU-1, and was granted {expected}"):
        require_device("GPU-1", expected)
