"""What `quantization_config` of a config.json says, parsed once: a kind that we read, or a refusal by name. Pure.

Some methods are transformers' to load (`None`); the others are read by ourselves on any device.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.model.quantized.stored_kinds import Awq, Gptq, Packed, Scaled, StoredKind

OWN = ("awq", "compressed-tensors", "fp8", "gptq")
PACKED, NUMBERS, FLOATS = "pack-quantized", "int-quantized", ("float-quantized", "naive-quantized")
KINDS = ("int", "float")
MOST_GROUP = 1 << 16


def read_kind(config: object) -> StoredKind | None:
    """Return how the linear maps are kept; None if there is no configuration, or one of transformers' methods.

    Raises ModelInvalid naming field, value and what is supported.
    """
    if config is None or not isinstance(config, Mapping) or config.get("quant_method") not in OWN:
        return None
    readers = {"awq": _read_awq, "gptq": _read_gptq, "fp8": _read_fp8, "compressed-tensors": _read_compressed}
    return readers[config["quant_method"]](config)


def plain_config(config: Any) -> Any:
    """Return transformers' configuration of the same model with plain weights."""
    plain = copy(config)
    del plain.quantization_config
    return plain


def without_own(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config.json without what asks nothing of a device, for we read it."""
    field = "quantization_config"
    is_own = read_kind(config.get(field)) is not None
    return {name: value for name, value in config.items() if name != field} if is_own else config


def _read_awq(config: Mapping[str, Any]) -> StoredKind:
    _require("version", str(config.get("version", "gemm")).lower(), ("gemm",))
    _require("bits", config.get("bits", config.get("w_bit", 4)), (4,))
    _require("zero_point", config.get("zero_point", True), (True,))
    return Awq(_group_size(config.get("group_size", config.get("q_group_size", 128))))


def _read_gptq(config: Mapping[str, Any]) -> StoredKind:
    _require("bits", config.get("bits"), (4, 8))
    _require("checkpoint_format", config.get("checkpoint_format", "gptq"), ("gptq", "gptq_v2"))
    offset = 0 if config.get("checkpoint_format") == "gptq_v2" else 1
    is_ordered = _require("desc_act", config.get("desc_act"), (None, True, False)) is True
    return Gptq(config["bits"], _group_size(config.get("group_size", 128)), offset, is_ordered)


def _read_fp8(config: Mapping[str, Any]) -> StoredKind:
    _require("fmt", config.get("fmt", "e4m3"), ("e4m3",))
    block = config.get("weight_block_size")
    return Scaled("F8_E4M3", "fp8", "weight_scale_inv" if block else "weight_scale", _block("weight_block_size", block))


def _read_compressed(config: Mapping[str, Any]) -> StoredKind:
    if config.get("transform_config"):  # activations would have to be rotated as the weights are
        raise _refusal("transform_config", config["transform_config"], ("none",))
    weights, file_format = _only_group(config)
    group_format = _require("format", file_format, (PACKED, NUMBERS, *FLOATS))
    strategy = _require("strategy", weights.get("strategy"), ("tensor", "channel", "group", "block"))
    kind, bits = weights.get("type", "int"), weights.get("num_bits")
    if group_format == PACKED:
        _require("type", kind, ("int",))
        _require("num_bits", bits, (4, 8))
        _require("strategy", strategy, ("channel", "group"))
        ordered = _require("actorder", weights.get("actorder"), (None, False, "static", "weight", "group", "dynamic"))
        size = _group_size(weights.get("group_size")) if strategy == "group" else -1
        is_symmetric = _require("symmetric", weights.get("symmetric", True), (True, False))
        return Packed(int(bits or 0), size, is_symmetric=is_symmetric, is_ordered=ordered in ("group", "dynamic"))
    _require("num_bits", bits, (8,))
    _require("type", kind, ("int",) if group_format == NUMBERS else ("float",) if group_format in FLOATS[:1] else KINDS)
    _require("strategy", strategy, ("tensor", "channel", "block"))
    block = _block("block_structure", weights.get("block_structure")) if strategy == "block" else None
    if strategy == "block" and block is None:
        raise _refusal("block_structure", None, ("two sizes",))
    is_symmetric = _require("symmetric", weights.get("symmetric", True), (True, False))
    dtype = "I8" if kind == "int" else "F8_E4M3"
    return Scaled(dtype, "compressed-tensors", "weight_scale", block, is_symmetric=is_symmetric)


def _only_group(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], object]:
    """Return how the weights of the only group of maps are kept, and in which format."""
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise _refusal("config_groups", f"{_length(groups)} groups", ("one group",))
    (group,) = groups.values()
    if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
        raise _refusal("config_groups", group, ("a group with weights",))
    _require("targets", group.get("targets", ["Linear"]), (["Linear"],))
    return group["weights"], group.get("format") or config.get("format")


def _length(value: object) -> int:
    return len(value) if isinstance(value, Mapping | list) else 0


def _group_size(value: object) -> int:
    if type(value) is not int or (value != -1 and not 1 <= value <= MOST_GROUP):
        raise _refusal("group_size", value, ("-1", f"1 to {MOST_GROUP}"))
    return value


def _block(name: str, value: object) -> tuple[int, int] | None:
    if value is None:
        return None
    sizes = value if isinstance(value, list) and len(value) == 2 else ()
    if not sizes or not all(type(n) is int and 1 <= n <= MOST_GROUP for n in sizes):
        raise _refusal(name, value, (f"two sizes from 1 to {MOST_GROUP}",))
    return sizes[0], sizes[1]


def _require(name: str, value: Any, supported: tuple[Any, ...]) -> Any:
    if not any(type(value) is type(one) and value == one for one in supported):
        raise _refusal(name, value, tuple(str(one) for one in supported))
    return value


def _refusal(name: str, value: object, supported: tuple[str, ...]) -> ModelInvalid:
    return ModelInvalid(
        f"config.json: quantization_config says {name} {str(value)[:80]}; read are {' or '.join(supported)}: use the "
        "model in another quantization, or its plain weights"
    )
