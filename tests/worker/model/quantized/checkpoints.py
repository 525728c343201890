"""Makes quantized maps as other tools write them: numpy and the formats' own words, nothing of the worker's code.

Each maker takes a weight [out, in] and returns the tensors of a map by the name of their part, and the plain weight
that they stand for, in float32.
"""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

AWQ_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)  # AutoAWQ's order_map: which column the i-th number of a word is of
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def words(numbers, bits):
    """Pack numbers [n, m] along m, the lowest bits first."""
    some, packed = 32 // bits, np.zeros((len(numbers), numbers.shape[1] * bits // 32), np.uint32)
    for i in range(some):
        packed |= numbers[:, i::some].astype(np.uint32) << np.uint32(bits * i)
    return torch.from_numpy(packed.view(np.int32))


def rounded(weight, groups, bits, *, symmetric=False, least_zero=0):
    """Return numbers [out, in], zeros and float16 scales [out, groups] of groups of inputs, and what they stand for."""
    most, plain = (1 << bits) - 1, weight.float().numpy()
    count, shape = int(groups.max()) + 1, plain.shape
    scales, zeros = np.zeros((shape[0], count), np.float16), np.full((shape[0], count), 1 << (bits - 1), np.int64)
    for g in range(count):
        some = plain[:, groups == g]
        if symmetric:
            scales[:, g] = np.abs(some).max(1) / ((1 << (bits - 1)) - 1)
        else:
            low, high = np.minimum(some.min(1), 0), np.maximum(some.max(1), 0)
            scales[:, g] = (high - low) / most
            zeros[:, g] = np.clip(np.round(-low / scales[:, g].astype(np.float32)), least_zero, most)
    by_input = scales.astype(np.float32)[:, groups], zeros[:, groups]
    numbers = np.clip(np.round(plain / by_input[0]) + by_input[1], 0, most).astype(np.int64)
    return numbers, zeros, scales, torch.from_numpy(((numbers - by_input[1]) * by_input[0]).astype(np.float32))


def groups_of(columns, size, *, shuffled=False):
    groups = np.zeros(columns, np.int64) if size == -1 else np.arange(columns) // size
    return np.random.default_rng(0).permutation(groups) if shuffled else groups


def gptq(weight, *, bits=4, size=16, offset=1, act_order=False):
    groups = groups_of(weight.shape[1], size, shuffled=act_order)
    numbers, zeros, scales, plain = rounded(weight, groups, bits, least_zero=offset)
    parts = {
        "qweight": words_of_inputs(numbers, bits),
        "qzeros": words((zeros - offset).T, bits),
        "scales": torch.from_numpy(scales.T.copy()),
        "g_idx": torch.from_numpy(groups.astype(np.int32)),
    }
    return parts, plain


def words_of_inputs(numbers, bits):
    """Pack numbers [out, in] into [in / some, out]."""
    return words(numbers, bits).T.contiguous()


def awq(weight, *, size=16):
    numbers, zeros, scales, plain = rounded(weight, groups_of(weight.shape[1], size), 4)
    order = [start + place for start in range(0, len(weight), 8) for place in AWQ_PLACES]
    parts = {
        "qweight": words(numbers.T[:, order], 4),
        "qzeros": words(zeros.T[:, order], 4),
        "scales": torch.from_numpy(scales.T.copy()),
    }
    return parts, plain


def packed(weight, *, bits=4, size=16, symmetric=True, act_order=False):
    groups = groups_of(weight.shape[1], size, shuffled=act_order)
    numbers, zeros, scales, plain = rounded(weight, groups, bits, symmetric=symmetric)
    parts = {
        "weight_packed": words(numbers, bits),
        "weight_scale": torch.from_numpy(scales),
        "weight_shape": torch.tensor(weight.shape),
    }
    if not symmetric:
        parts["weight_zero_point"] = words(zeros.T, bits).T.contiguous()
    if act_order:
        parts["weight_g_idx"] = torch.from_numpy(groups.astype(np.int32))
    return parts, plain


def int8(weight):
    scales = weight.float().abs().amax(1, keepdim=True) / 127
    numbers = (weight.float() / scales).round()
    return {"weight": numbers.to(torch.int8), "weight_scale": scales}, numbers * scales


def fp8(weight, *, block=None, scale="weight_scale", per_row=False):
    rows, columns = weight.shape
    height, width = block or ((1, columns) if per_row else (rows, columns))
    scales = torch.ones(-(-rows // height), -(-columns // width))
    for i in range(len(scales)):
        for j in range(scales.shape[1]):
            some = weight[i * height : (i + 1) * height, j * width : (j + 1) * width]
            scales[i, j] = some.float().abs().max() / 448
    wide = scales.repeat_interleave(height, 0).repeat_interleave(width, 1)[:rows, :columns]
    numbers = (weight.float() / wide).to(torch.float8_e4m3fn)
    return {"weight": numbers, scale: scales if block or per_row else scales.view(1)}, numbers.float() * wide


def compressed(kind, bits, file_format, **fields):
    weights = {"num_bits": bits, "type": kind, "symmetric": True, "strategy": "channel", **fields}
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "format": file_format, "config_groups": {"group_0": group}}


KINDS = {  # name → (what config.json says, the maker)
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 16}, gptq),
    "gptq 8 bits, ordered": (
        {"quant_method": "gptq", "bits": 8, "group_size": 8, "desc_act": True},
        lambda weight: gptq(weight, bits=8, size=8, act_order=True),
    ),
    "gptq v2": (
        {"quant_method": "gptq", "bits": 4, "group_size": -1, "checkpoint_format": "gptq_v2"},
        lambda weight: gptq(weight, size=-1, offset=0),
    ),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"}, awq),
    "w4a16": (compressed("int", 4, "pack-quantized", strategy="group", group_size=16), packed),
    "w4a16 with zeros, ordered": (
        compressed("int", 4, "pack-quantized", strategy="group", group_size=16, symmetric=False, actorder="group"),
        lambda weight: packed(weight, symmetric=False, act_order=True),
    ),
    "w8a16": (compressed("int", 8, "pack-quantized"), lambda weight: packed(weight, bits=8, size=-1)),
    "w8a8": (compressed("int", 8, "int-quantized"), int8),
    "fp8 of outputs": (compressed("float", 8, "float-quantized"), lambda weight: fp8(weight, per_row=True)),
    "fp8": ({"quant_method": "fp8", "activation_scheme": "static"}, fp8),
    "fp8 of blocks": (
        {"quant_method": "fp8", "weight_block_size": [12, 24]},
        lambda weight: fp8(weight, block=(12, 24), scale="weight_scale_inv"),
    ),
}


def quantize_model(directory: Path, kind: str, kinds=KINDS):
    """Rewrite a tiny model's projections in this kind; return the plain weights that it has now, by name."""
    said, make = kinds[kind]
    file = directory / "model.safetensors"
    tensors, plain = {}, {}
    for name, tensor in load_file(file).items():
        path = name.removesuffix(".weight")
        if path.rpartition(".")[2] in PROJECTIONS and tensor.dim() == 2:
            parts, plain[name] = make(tensor)
            tensors.update({f"{path}.{part}": found.contiguous() for part, found in parts.items()})
        else:
            tensors[name] = plain[name] = tensor
    save_file(tensors, file, metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "quantization_config": said}))
    return plain
