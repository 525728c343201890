"""Passes that torch computes: launch by launch, or as a graph that was recorded before."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from dormouse_worker.model.adapters.choose import choose_adder
from dormouse_worker.model.adapters.rows import AdapterRows
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.attention.interface import AttentionBackend, AttentionPlan
from dormouse_worker.model.attention.paged import PagedContext
from dormouse_worker.model.context import forward_context
from dormouse_worker.model.graphs import DecodeGraphs
from dormouse_worker.model.input_batch import PackedInput
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.model.loaded import LoadedModel
from dormouse_worker.model.native_way import NativeWay, kernels_for, on_torchs_threads
from dormouse_worker.model.parallel.communicator import ALONE, Communicator
from dormouse_worker.model.promised_tokens import PromisedTokens
from dormouse_worker.model.quantized.modules import computed_dtype
from dormouse_worker.model.scratch import Scratch
from dormouse_worker.model.states import KeptStates
from dormouse_worker.model.to_device import to_device
from dormouse_worker.model.vision.placed import ImageRows
from dormouse_worker.native.library import Kernels


@dataclass(frozen=True, slots=True)
class TorchForward:
    """Implements `graphs.Forward` with a model and a cache."""

    model: LoadedModel
    cache: KVCache
    communicator: Communicator = ALONE
    scratch: Scratch = field(default_factory=Scratch)
    states: KeptStates | None = None  # of each pass, for a head that reads along

    def __call__(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        rows: torch.Tensor,
        plans: Sequence[AttentionPlan],
        adapters: AdapterRows | None = None,
        *,
        images: Sequence[ImageRows] = (),
    ) -> torch.Tensor:
        """See `graphs.Forward`; `images` are rows that are no tokens'."""
        with forward_context(PagedContext(self.cache, plans, self.scratch), self.communicator, adapters):
            return self.model.compute_logits(token_ids, positions, rows, images, self.states)


class DeviceInput:
    """Brings a pass's input to the device, with the tokens that only the device knows yet."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.promised: PromisedTokens | None = None

    def bring(self, packed: PackedInput) -> torch.Tensor:
        """Return token ids and positions, [2, T] on the device; [4, T] where these are in time, height and width."""
        positions = packed.positions[None] if packed.rope is None else packed.rope
        inputs = to_device(np.concatenate([packed.token_ids[None], positions]), self._device)
        if self.promised is not None:
            self.promised.put_into(inputs[0], packed)
        return inputs


class GraphPath:
    """Implements `ForwardPath` for decode steps that were recorded over this very model and cache."""

    def __init__(self, graphs: DecodeGraphs, model: LoadedModel, inputs: DeviceInput) -> None:
        self._graphs = graphs
        self._model = model
        self._inputs = inputs

    def __repr__(self) -> str:
        return f"GraphPath({self._graphs!r})"

    def fits(self, packed: PackedInput, rows: Ints) -> bool:
        """See `ForwardPath`. A graph waits for no weights, and knows of no adapters and images."""
        is_plain = packed.lora_slots is None and not packed.images and not packed.virtual and packed.rope is None
        return is_plain and not self._model.weights.is_arriving and self._graphs.fits(packed, rows)

    @torch.inference_mode()
    def compute(self, packed: PackedInput, rows: Ints, images: Sequence[ImageRows] = ()) -> torch.Tensor:
        """See `ForwardPath`."""
        del rows, images  # all of them, and none
        return self._graphs.run(packed, self._inputs.bring(packed))


class EagerPath:
    """Implements `ForwardPath`: any pass."""

    def __init__(self, forward: TorchForward, backend: AttentionBackend, inputs: DeviceInput) -> None:
        self._forward = forward
        self._backend = backend
        self._inputs = inputs
        self._make_adder = choose_adder(forward.model.device)
        self._way = _way_of(forward.model, backend.name)

    def __repr__(self) -> str:
        return f"EagerPath({self._forward.model.impl})"

    def fits(self, packed: PackedInput, rows: Ints) -> bool:
        """See `ForwardPath`."""
        del packed, rows
        return True

    @torch.inference_mode()
    def compute(self, packed: PackedInput, rows: Ints, images: Sequence[ImageRows] = ()) -> torch.Tensor:
        """See `ForwardPath`."""
        device = self._forward.model.device
        inputs = self._inputs.bring(packed)
        token_ids, positions = inputs[0], inputs[1] if packed.rope is None else inputs[1:]
        plans = [self._backend.plan(group, device) for group in packed.groups]
        slots = packed.lora_slots
        adapters = None if slots is None else AdapterRows(slots, rows, self._make_adder)
        wanted = to_device(rows, device)
        with self._way:
            return self._forward(token_ids, positions, wanted, plans, adapters, images=images)


def kernels_of_maps(model: LoadedModel, attention: str) -> Kernels | None:
    """Return ours that compute transformers' module; our own decoder may be compiled, and stays torch's."""
    return None if model.lean is not None else kernels_for(attention, model.device, computed_dtype(model.module))


def _way_of(model: LoadedModel, attention: str) -> AbstractContextManager[Any]:
    kernels = on_torchs_threads(kernels_of_maps(model, attention))
    return nullcontext() if kernels is None else NativeWay(kernels, kernels.num_threads)
