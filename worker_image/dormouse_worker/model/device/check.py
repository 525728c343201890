"""Whether a device is the one that is meant, and can compute a model by its config.json; asked at first. Pure.

What transformers' quantizers do on a device too old for them is to fall back to a multiple of the memory, or to fail in
the first forward pass. Both are told here instead, with the knob to turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dormouse_worker.common.errors import InvalidSettings, WrongDevice

Capability = tuple[int, int]
ANY: Capability = (0, 0)
UUID_PREFIXES = ("GPU-", "MIG-")  # of a name that means one device anywhere; what else a driver says is its own


@dataclass(frozen=True, slots=True)
class Needs:
    """What a quantizer's kernels need: the oldest device, and the dtypes they compute in (empty = any)."""

    capability: Capability = ANY
    dtypes: tuple[str, ...] = ()


DTYPE_CAPABILITY: Mapping[str, Capability] = MappingProxyType({"bfloat16": (8, 0)})
QUANTIZERS: Mapping[str, Needs] = MappingProxyType(
    {
        "awq": Needs((7, 5), ("float16",)),
        "bitsandbytes_4bit": Needs((6, 0)),
        "bitsandbytes_8bit": Needs((7, 5)),
        "eetq": Needs((7, 0), ("float16",)),
        "fbgemm_fp8": Needs((9, 0), ("bfloat16",)),
        "fp8": Needs((8, 9)),
        "fp_quant": Needs((9, 0), ("bfloat16",)),
        "gptq": Needs((6, 0), ("float16", "bfloat16")),
        "higgs": Needs((8, 0), ("float16", "bfloat16")),
        "mxfp4": Needs((7, 5)),
        "mxfp8": Needs((8, 9)),
        "nvfp4": Needs((10, 0)),
        "torchao_float8": Needs((8, 9)),
        "torchao_int4": Needs((8, 0), ("bfloat16",)),
    }
)


def require_device(name: str, expected: str) -> None:
    """Raise WrongDevice if this is not the expected device, or none of several that a comma divides; "" = any is.

    Only UUIDs are compared: a claim's driver may call devices as it likes. Without NVML a slice bears the prefix of a
    whole GPU (see `device_names`), so the prefix does not count.
    """
    wanted = [part.strip() for part in expected.split(",") if part.strip()]
    if not wanted or not all(part.startswith(UUID_PREFIXES) for part in (name, *wanted)):
        return
    if name[4:] not in {part[4:] for part in wanted}:
        raise WrongDevice(f"this worker sees the device {name}, and was granted {expected}: nothing was loaded on it")


def check_device(name: str, capability: Capability | None, dtype: str, config: Mapping[str, Any]) -> None:
    """Raise InvalidSettings if this device cannot compute the model of this config.json in this setting's dtype.

    A device without a capability, the CPU, computes everything that transformers loads on it.
    """
    if capability is None:
        return
    quantizer = find_quantizer(config)
    needs = QUANTIZERS.get(quantizer, Needs())
    if capability < needs.capability:
        raise InvalidSettings(
            f"{name} has compute capability {_text(capability)}, weights quantized by {quantizer} need "
            f"{_text(needs.capability)}; use a newer GPU, or the model in another quantization"
        )
    chosen = resolve_dtype(dtype, config)
    if chosen and needs.dtypes and chosen not in needs.dtypes:
        raise InvalidSettings(
            f"dtype is {chosen}, weights quantized by {quantizer} compute in {' or '.join(needs.dtypes)}; "
            f"set dtype to {needs.dtypes[0]}"
        )
    if capability < DTYPE_CAPABILITY.get(chosen, ANY):
        raise InvalidSettings(
            f"{name} has compute capability {_text(capability)}, bfloat16 needs "
            f"{_text(DTYPE_CAPABILITY[chosen])}; set dtype to float16, or use a newer GPU"
        )


def find_quantizer(config: Mapping[str, Any]) -> str:
    """Return how the weights are quantized, "" if they are not; kinds that differ in their needs told apart."""
    found = _part(config, "quantization_config") or _part(_part(config, "text_config"), "quantization_config")
    method = str(found.get("quant_method", ""))
    if found.get("load_in_4bit") or found.get("load_in_8bit"):
        return "bitsandbytes_4bit" if found.get("load_in_4bit") else "bitsandbytes_8bit"
    if method == "torchao":
        kind = str(found.get("quant_type", "")).lower()
        return next((f"torchao_{part}" for part in ("float8", "int4") if part in kind), method)
    return method


def resolve_dtype(dtype: str, config: Mapping[str, Any]) -> str:
    """Return the dtype to compute in, "" if only the weights' files tell.

    `auto` = the model's own; where its quantizer computes in others, the quantizer's first, as transformers chooses.
    """
    if dtype != "auto":
        return dtype
    text = _part(config, "text_config")
    names = (source.get(key) for source in (text, config) for key in ("dtype", "torch_dtype"))
    own = next((str(name).removeprefix("torch.") for name in names if name), "")
    allowed = QUANTIZERS.get(find_quantizer(config), Needs()).dtypes
    return allowed[0] if allowed and own not in allowed else own


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object within the configuration; {} for whatever else stands there."""
    part = config.get(name)
    return part if isinstance(part, Mapping) else {}


def _text(capability: Capability) -> str:
    return ".".join(str(part) for part in capability)
