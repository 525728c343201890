"""Torch's own paged attention, `torch.nn.attention.varlen.varlen_attn`: FlashAttention-2 or cuDNN, CUDA only.

FlashAttention-2 takes pages of 256 tokens and multiples, cuDNN smaller ones too but no windows; torch chooses between
them at each call. The function is young: what this torch's takes is looked up (`machine`), never assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dormouse_worker.model.attention.device_copy import upload
from dormouse_worker.model.attention.interface import (
    AttentionMetadata,
    AttentionShape,
    BackendSizes,
    GraphSupport,
)
from dormouse_worker.model.attention.machine import Machine
from dormouse_worker.model.context import AttentionCall
from dormouse_worker.model.kv_cache import LayerCache

PARAMETERS = frozenset({"scale", "window_size", "enable_gqa", "seqused_k", "block_table"})
MIN_CAPABILITY = (8, 0)
FLASH_PAGE_TOKENS = 256
MAX_HEAD_SIZE = 256
MIN_CUDNN = 92400  # 9.24 is the first that aligns a chunk to the end of its context, and computes single rows
CUDNN_MAX_HEAD_SIZE = 128
CUDNN_MAJORS = (9, 10)  # of the compute capability

VarlenAttention = Callable[..., Any]  # its answer is a tensor, or with options that we never set a pair


@dataclass(frozen=True, slots=True)
class VarlenPlan:
    """One pass; all tensors lie on the device. Lengths are the host's, so nothing is waited for."""

    varlen_attn: VarlenAttention
    slots: torch.Tensor  # int64 [T]
    query_starts: torch.Tensor  # int32 [N + 1]
    context_lens: torch.Tensor  # int32 [N]
    tables: torch.Tensor  # int32 [N, B]
    max_query_len: int
    max_context_len: int
    block_size: int

    def write(self, layer: LayerCache, key: torch.Tensor, value: torch.Tensor) -> None:
        """See `AttentionPlan`."""
        layer.write(self.slots, key, value)

    def attend(self, call: AttentionCall, query: torch.Tensor, layer: LayerCache) -> torch.Tensor:
        """See `AttentionPlan`."""
        key, value = (pool.view(-1, self.block_size, *pool.shape[1:]) for pool in (layer.key, layer.value))
        output: torch.Tensor = self.varlen_attn(
            query,
            key,
            value,
            self.query_starts,
            None,
            self.max_query_len,
            self.max_context_len,
            scale=call.scale,
            window_size=(-1 if call.window is None else call.window - 1, 0),  # tokens before and after its own
            enable_gqa=query.shape[1] != key.shape[2],
            seqused_k=self.context_lens,
            block_table=self.tables,
        )
        return output


class VarlenBackend:
    """Makes plans; keeps no memory. Not captured in graphs: nobody has seen that its kernels allow it."""

    name = "varlen"
    graph_support = GraphSupport.NEVER

    def __init__(self, sizes: BackendSizes, varlen_attn: VarlenAttention | None = None) -> None:
        self._block_size = sizes.shapes[0].block_size
        self._varlen_attn = varlen_attn or _import_varlen()

    @staticmethod
    def supports(machine: Machine, shape: AttentionShape) -> str | None:
        """See `AttentionBackend`."""
        return _unsupported_machine(machine) or _unsupported_shape(shape) or _unsupported_pages(machine, shape)

    def workspace_bytes(self) -> int:
        """See `AttentionBackend`. What the kernels need beside their output is an activation."""
        return 0

    def bind_workspace(self, workspace: torch.Tensor) -> None:
        """See `AttentionBackend`."""

    def plan(self, metadata: AttentionMetadata, device: torch.device) -> VarlenPlan:
        """See `AttentionBackend`."""
        arrays = [metadata.query_starts, metadata.context_lens, metadata.block_tables, metadata.slot_mapping]
        query_starts, context_lens, tables, slots = upload(arrays, device)
        return VarlenPlan(
            varlen_attn=self._varlen_attn,
            slots=slots.long(),
            query_starts=query_starts,
            context_lens=context_lens,
            tables=tables,
            max_query_len=int(metadata.query_lens.max()),
            max_context_len=int(metadata.context_lens.max()),
            block_size=self._block_size,
        )


def _import_varlen() -> VarlenAttention:
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn


def _unsupported_machine(machine: Machine) -> str | None:
    if machine.device_type != "cuda":
        return f"runs on CUDA devices, not on {machine.device_type}"
    if not machine.varlen_parameters >= PARAMETERS:
        missing = ", ".join(sorted(PARAMETERS - machine.varlen_parameters))
        version = ".".join(map(str, machine.torch_version))
        return f"needs torch 2.12 or later, whose varlen_attn reads block tables: that of {version} has no {missing}"
    if machine.capability is None or machine.capability < MIN_CAPABILITY:
        found = "unknown" if machine.capability is None else ".".join(map(str, machine.capability))
        return f"needs compute capability 8.0 or higher, and the device's is {found}"
    return None


def _unsupported_shape(shape: AttentionShape) -> str | None:
    if shape.dtype not in (torch.float16, torch.bfloat16):
        return f"computes in float16 and bfloat16, not in {str(shape.dtype).removeprefix('torch.')}"
    if shape.has_soft_cap:
        return "knows no soft-cap on the scores"
    if shape.has_sinks:
        return "knows no attention sinks"
    if shape.looks_ahead:
        return "lets no token see those behind it, as an image's do in this model"
    if shape.key_size != shape.value_size:
        return f"needs keys and values of one size, and these have {shape.key_size} and {shape.value_size} elements"
    if shape.key_size % 8 or shape.key_size > MAX_HEAD_SIZE:
        return f"needs head sizes that are multiples of 8 up to {MAX_HEAD_SIZE}, and this is {shape.key_size}"
    if shape.num_heads % shape.num_kv_heads:
        return f"{shape.num_heads} query heads cannot share {shape.num_kv_heads} key heads evenly"
    return None


def _unsupported_pages(machine: Machine, shape: AttentionShape) -> str | None:
    """Say why blocks of this size cannot be read: by FlashAttention-2 in large pages, else by cuDNN."""
    if shape.block_size % FLASH_PAGE_TOKENS == 0:
        return None
    small = f"reads blocks of {shape.block_size} tokens through cuDNN alone"
    if not machine.has_cudnn_varlen or machine.cudnn_version < MIN_CUDNN:
        return f"{small}, which this torch does not offer in 9.24 or later; blocks of {FLASH_PAGE_TOKENS} need it not"
    if machine.capability is None or machine.capability[0] not in CUDNN_MAJORS:
        return f"{small}, which needs compute capability 9 or 10"
    if shape.block_size & (shape.block_size - 1):
        return f"{small}, which needs a power of two"
    if shape.window is not None:
        return f"{small}, which knows no windows"
    if shape.key_size > CUDNN_MAX_HEAD_SIZE:
        return f"{small}, which takes head sizes up to {CUDNN_MAX_HEAD_SIZE}, and this is {shape.key_size}"
    return None
