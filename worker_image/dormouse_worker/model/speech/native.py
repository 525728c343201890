"""Whisper by our kernels for processors. What a row gets depends on nothing but itself.

A token reads all weights and all that its window has encoded, once: what takes time is memory, and our kernels read it
in larger pieces than torch's do. A window's rows, 1,500 of them, are multiplied at the kernels' full rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from dormouse_worker.common.ipc import NATIVE
from dormouse_worker.common.settings import AUTO, NONE, EngineSettings
from dormouse_worker.engine.speech.batch import SpeechRow
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.attention.interface import AttentionMetadata
from dormouse_worker.model.attention.native_plan import TYPES, NativePlan
from dormouse_worker.model.context import AttentionCall
from dormouse_worker.model.device.device import Device
from dormouse_worker.model.lean.native import describe_linear
from dormouse_worker.model.lean.parts import Linear
from dormouse_worker.model.quantized.modules import QuantizedLinear
from dormouse_worker.model.speech.arithmetic import Arithmetic, InTorch, Windows, attend, spans_of
from dormouse_worker.model.speech.cache import Places, Sizes
from dormouse_worker.model.speech.native_encoder import NativeEncoder
from dormouse_worker.model.tensors import name_of
from dormouse_worker.native import abi
from dormouse_worker.native.library import Kernels, Missing, load_kernels

_GELU = "gelu"
_MAPS = nn.Linear | QuantizedLinear | nn.Conv1d


def choose_arithmetic(module: Any, sizes: Sizes, settings: EngineSettings, device: Device) -> Arithmetic:
    """Return what computes a model whose weights lie where they stay."""
    kernels = load_kernels()
    why = _why_torch(module.config, sizes, settings, device)
    if why is None and isinstance(kernels, Missing):
        why = kernels.reason
    if why is not None or isinstance(kernels, Missing):
        return InTorch(module, device.torch_device, why or "")
    return InKernels(module, sizes, kernels, settings.quantization)


def _why_torch(config: Any, sizes: Sizes, settings: EngineSettings, device: Device) -> str | None:
    """Return why the kernels would not compute a model if they were there."""
    largest = max(sizes.head_size, config.d_model // config.encoder_attention_heads)
    if device.torch_device.type != "cpu":
        return f"it runs on {device.torch_device.type}"
    if settings.model_impl == "transformers":
        return "model_impl is transformers"
    if settings.attention_backend not in (AUTO, NATIVE):
        return f"attention_backend is {settings.attention_backend}"
    if name_of(sizes.dtype) not in TYPES:
        return f"the kernels compute in {' and '.join(TYPES)}"
    if largest > abi.MAX_HEAD_SIZE:
        return f"heads have {largest} numbers, and the kernels take up to {abi.MAX_HEAD_SIZE}"
    if config.activation_function != _GELU:
        return f"activation_function is {config.activation_function}, and the kernels know {_GELU}"
    return None


class InKernels:
    """Implements `Arithmetic`, on as many threads as torch has. Sums are float32."""

    def __init__(self, module: Any, sizes: Sizes, kernels: Kernels, quantization: str = NONE) -> None:
        """The module's weights keep their addresses."""
        kernels.set_num_threads(torch.get_num_threads())
        suffix = "" if quantization == NONE else f" {quantization}"
        self.name = f"{NATIVE} {kernels.name}{suffix}"
        self._kernels = kernels
        self._dtype = TYPES[name_of(sizes.dtype)]
        self._maps = {id(part): _Map.of(part) for part in module.modules() if isinstance(part, _MAPS)}
        self._encoder = NativeEncoder(module.model.encoder, kernels, self.linear)

    def __repr__(self) -> str:
        return f"InKernels({self.name!r}, {len(self._maps)} maps)"

    def linear(self, part: Any, rows: torch.Tensor) -> torch.Tensor:
        """See `Arithmetic`."""
        taken, found = rows.float().contiguous(), self._maps[id(part)]
        out = torch.empty(len(taken), found.num_outputs)
        sizes = {"num_rows": len(taken), "columns": taken.shape[1], "num_outputs": found.num_outputs}
        self._kernels.multiply(self._dtype, taken.data_ptr(), found.linear, out.data_ptr(), **sizes)
        return out.to(rows.dtype)

    def encode(self, features: torch.Tensor) -> torch.Tensor:
        """See `Arithmetic`."""
        return self._encoder.encode(features)

    def windows(self, rows: Sequence[SpeechRow], places: Places) -> Windows:
        """See `Arithmetic`."""
        return NativeWindows(self._kernels, rows, places)


class NativeWindows:
    """Implements `Windows`: a place is a block.

    Of what is encoded each head has a block of its own, and each of its queries is a sequence of one row: it reads one
    stretch of memory. A prompt's tokens attend in torch, which reads that once for all of them.
    """

    def __init__(self, kernels: Kernels, rows: Sequence[SpeechRow], places: Places) -> None:
        self._rows, self._spans, self._places = rows, spans_of(rows), places
        counts = [span.stop - span.start for span in self._spans]
        positions = np.concatenate([np.arange(row.num_cached, len(row.token_ids)) for row in rows])
        blocks = np.asarray([row.place for row in rows])
        self._own = _plan(kernels, counts, blocks, positions, places.own.spec.block_size)
        self._lone = [span.start for span, count in zip(self._spans, counts, strict=True) if count == 1]
        if self._lone:
            heads, size = places.cross.layer(0).key.shape[1], places.cross.spec.block_size
            lone = np.asarray([row.place for row, count in zip(rows, counts, strict=True) if count == 1])
            each = (lone[:, None] * heads + np.arange(heads)).reshape(-1)
            self._cross = _plan(kernels, np.ones_like(each), each, np.full(len(each), size - 1), size)

    def __repr__(self) -> str:
        return f"NativeWindows({len(self._rows)}, {len(self._lone)} of one token)"

    def attend_own(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See `Windows`."""
        pool = self._places.own.layer(layer)
        self._own.write(pool, key, value)
        mixed: torch.Tensor = self._own.attend(_call(layer), query, pool)
        return mixed

    def attend_cross(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """See `Windows`."""
        if len(self._lone) == len(query):
            return self._attend_lone(layer, query)
        mixed = torch.empty_like(query)
        if self._lone:
            mixed[self._lone] = self._attend_lone(layer, query[self._lone])
        for row, span in zip(self._rows, self._spans, strict=True):
            if span.stop - span.start > 1:
                mixed[span] = attend(query[span], self._places.cross_of(row.place, layer))
        return mixed

    def _attend_lone(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        by_head = query.reshape(-1, 1, query.shape[-1])
        mixed: torch.Tensor = self._cross.attend(_call(layer), by_head, self._places.cross_by_head(layer))
        return mixed.view_as(query)


def _plan(kernels: Kernels, counts: Sequence[int] | Ints, blocks: Ints, positions: Ints, block_size: int) -> NativePlan:
    """Return a pass over sequences of so many rows, each with one block; a row sees it up to its position."""
    return NativePlan(
        kernels,
        AttentionMetadata(
            query_starts=np.concatenate([[0], np.cumsum(counts)]),
            context_lens=np.full(len(blocks), block_size),
            block_tables=blocks.reshape(-1, 1),
            slot_mapping=np.repeat(blocks * block_size, counts) + positions,
            positions=positions,
            block_size=block_size,
        ),
    )


def _call(layer: int) -> AttentionCall:
    return AttentionCall(layer_idx=layer, scale=1.0)  # queries are scaled before they are split up


@dataclass(frozen=True, slots=True)
class _Map:
    """A linear map, or a convolution as one."""

    linear: abi.Linear
    num_outputs: int

    @classmethod
    def of(cls, part: nn.Linear | QuantizedLinear | nn.Conv1d) -> _Map:
        if isinstance(part, QuantizedLinear):
            found = Linear(part.weight, part.bias, scale=part.weight_scale, format=part.format)
        else:
            found = Linear(part.weight, part.bias)
        return cls(describe_linear(found), len(part.weight))
