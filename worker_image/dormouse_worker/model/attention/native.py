"""The backend for processors: our own kernels read the paged cache where it lies. Knows tensors, not models."""

from __future__ import annotations

import torch

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.model.attention.interface import AttentionMetadata, AttentionShape, BackendSizes, EagerBackend
from dormouse_worker.model.attention.machine import Machine
from dormouse_worker.model.attention.native_plan import TYPES, NativePlan
from dormouse_worker.model.tensors import name_of
from dormouse_worker.native.abi import MAX_HEAD_SIZE
from dormouse_worker.native.library import Kernels, Missing, load_kernels


class NativeBackend(EagerBackend):
    """Float32 and bfloat16 on processors; what it sums up is float32. A row's bits do not depend on its batch."""

    name = "native"
    reads_rounded = True

    def __init__(self, sizes: BackendSizes | None = None, *, kernels: Kernels | Missing | None = None) -> None:  # noqa: ARG002
        """Compute on as many threads as torch does. Raises InvalidSettings where there are no kernels."""
        found = kernels or load_kernels()
        if isinstance(found, Missing):
            raise InvalidSettings(f"attention_backend is {self.name}, which needs its kernels: {found.reason}")
        found.set_num_threads(torch.get_num_threads())
        self.kernels = found

    @staticmethod
    def supports(machine: Machine, shape: AttentionShape) -> str | None:
        """See `AttentionBackend`."""
        if machine.device_type != "cpu":
            return f"runs on processors, not on {machine.device_type} devices"
        if machine.missing_kernels is not None:
            return f"cannot be used: {machine.missing_kernels}"
        if name_of(shape.dtype) not in TYPES:
            return f"reads float32 and bfloat16, not {name_of(shape.dtype)}"
        if max(shape.key_size, shape.value_size) > MAX_HEAD_SIZE:
            return f"takes head sizes up to {MAX_HEAD_SIZE}, and this is {max(shape.key_size, shape.value_size)}"
        if shape.num_heads % shape.num_kv_heads:
            return f"{shape.num_heads} query heads cannot share {shape.num_kv_heads} key heads evenly"
        return None

    def plan(self, metadata: AttentionMetadata, device: torch.device) -> NativePlan:  # noqa: ARG002
        """See `AttentionBackend`."""
        return NativePlan(self.kernels, metadata)
