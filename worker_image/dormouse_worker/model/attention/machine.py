"""What a machine has to compute attention with. The only file that asks; everybody else decides by what it found."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any

import torch

from dormouse_worker.common.errors import Internal
from dormouse_worker.native.library import Missing, load_kernels

Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Machine:
    """One device and the libraries beside it."""

    device_type: str  # cpu | cuda
    torch_version: Version
    capability: tuple[int, int] | None = None  # of the CUDA device; None = it is none
    triton_version: Version | None = None  # None = not installed
    cudnn_version: int = 0  # 92400 = 9.24; 0 = none
    varlen_parameters: frozenset[str] = frozenset()  # of torch's varlen_attn; empty = there is none, or no GPU
    has_cudnn_varlen: bool = False  # varlen_attn can take cuDNN, which reads small pages, for a single row too
    missing_kernels: str | None = None  # why there are none of ours for processors; None = there are


def describe_machine(device: torch.device) -> Machine:
    """Look at the device and the installed libraries; imports no triton. Raises Internal on an unreadable version."""
    is_cuda = device.type == "cuda"
    parameters, module = find_varlen() if is_cuda else (frozenset[str](), None)
    kernels = load_kernels()
    return Machine(
        device_type=device.type,
        torch_version=parse_version(torch.__version__),
        capability=torch.cuda.get_device_capability(device) if is_cuda else None,
        triton_version=_installed("triton"),
        cudnn_version=_cudnn_version() if is_cuda else 0,
        varlen_parameters=parameters,
        has_cudnn_varlen=is_cuda and torch.version.hip is None and _has_cudnn_varlen(module),
        missing_kernels=kernels.reason if isinstance(kernels, Missing) else None,
    )


def parse_version(version: str) -> Version:
    """Return the first two numbers of a version such as 2.15.0+cu132."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise Internal(f"{version!r} is no version: it does not begin with two numbers")
    return int(found[1]), int(found[2])


def _cudnn_version() -> int:
    version: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return version or 0


def _installed(package: str) -> Version | None:
    try:
        return parse_version(metadata.version(package))
    except metadata.PackageNotFoundError:
        return None


def find_varlen() -> tuple[frozenset[str], Any]:
    """Return the parameters of varlen_attn and its module; it is young, so what it takes is looked up, not assumed."""
    try:
        module = import_module("torch.nn.attention.varlen")
    except ImportError:
        return frozenset(), None
    return frozenset(inspect.signature(module.varlen_attn).parameters), module


def _has_cudnn_varlen(module: Any) -> bool:
    """Say whether this torch hands varlen_attn to cuDNN. It offers no public question, so its own one is looked for."""
    is_disabled = getattr(torch._C, "_is_cudnn_attention_decode_disabled", None)  # noqa: SLF001
    return hasattr(module, "_cudnn_rejection_reasons") and (is_disabled is None or not is_disabled())
