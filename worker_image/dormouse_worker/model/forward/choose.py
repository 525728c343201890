"""Which way a pass is computed: the first of these that fits it.

    native   our kernels, where they know the model and are the ones that attend
    graph    a decode step that was recorded
    eager    any pass, in torch: our own decoder (lean), else transformers' module

Where an encoder reads the prompts there is one path only.

All of a model's paths say the same bits, so which one computes is a matter of time alone. One exception is named where
it is asked for: a compiled size may round differently (decision 20).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from dormouse_worker.common.ipc import NATIVE
from dormouse_worker.common.settings import NONE
from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.attention.interface import AttentionBackend
from dormouse_worker.model.attention.native import NativeBackend
from dormouse_worker.model.encoder_decoder.load import UNFIT
from dormouse_worker.model.forward.in_torch import DeviceInput, EagerPath, GraphPath, TorchForward, kernels_of_maps
from dormouse_worker.model.forward.native import NativePath
from dormouse_worker.model.forward.path import ForwardPath
from dormouse_worker.model.forward.two_sides import TwoSidedPath
from dormouse_worker.model.graphs import DecodeGraphs
from dormouse_worker.model.input_batch import PackedInput
from dormouse_worker.model.lean.native import NativeDecoder
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.model.loaded import LoadedModel
from dormouse_worker.model.promised_tokens import PromisedTokens
from dormouse_worker.model.quantized.modules import name_of_kernels
from dormouse_worker.model.scratch import Floats
from dormouse_worker.model.states import KeptStates
from dormouse_worker.model.vision.placed import ImageRows


class ForwardPaths:
    """The paths of one model and cache, in order."""

    def __init__(self, forward: TorchForward, backend: AttentionBackend, graphs: DecodeGraphs | None = None) -> None:
        """`graphs` were recorded over the very model and cache of `forward`."""
        self._forward, self._backend = forward, backend
        model = forward.model
        self._inputs = DeviceInput(model.device)
        if model.sides is not None:
            self._paths: tuple[ForwardPath, ...] = (TwoSidedPath(forward, self._inputs),)
            return
        paths: list[ForwardPath] = []
        if native := _native_of(model, backend.name):
            paths.append(NativePath(native, backend, forward))
        if graphs is not None:
            paths.append(GraphPath(graphs, model, self._inputs))
        self._paths = (*paths, EagerPath(forward, backend, self._inputs))

    def __repr__(self) -> str:
        return f"ForwardPaths({', '.join(map(repr, self._paths))})"

    def read_along(self, states: KeptStates) -> ForwardPaths:
        """Return paths that leave each pass's states in `states`, as graphs do not; only of one rank."""
        forward = replace(self._forward, scratch=states.make_scratch(), states=states)
        return ForwardPaths(forward, self._backend)

    def go_on_from(self, promised: PromisedTokens) -> None:
        """From now on fill in tokens of earlier passes that only the device knows yet."""
        self._inputs.promised = promised

    def compute(self, packed: PackedInput, rows: Ints, images: Sequence[ImageRows] = ()) -> torch.Tensor | Floats:
        """Return the logits [len(rows), V] of the ascending rows that are wanted, an array if torch had no part.

        `images` are the rows of `packed.images`.
        """
        for path in self._paths:
            if path.fits(packed, rows):
                return path.compute(packed, rows, images)
        raise AssertionError("the last path computes any pass")


def _native_of(model: LoadedModel, attention: str) -> NativeDecoder | None:
    """Return our kernels of the model, where they know it and are the ones that attend."""
    native = model.native
    return native if isinstance(native, NativeDecoder) and attention == NativeBackend.name else None


def describe_path(model: LoadedModel, attention: str) -> str:
    """Return which path computes with an attention backend of this name, and why it is not our kernels'."""
    if model.sides is not None:
        return f"torch: transformers' encoder and decoder layers over the paged cache; not native: {UNFIT}"
    format_of, cached = "" if model.quantization == NONE else f" {model.quantization}", model.cache_spec.suffix
    if native := _native_of(model, attention):
        return f"{NATIVE} {native.name}{format_of}{cached}"
    sizes = () if model.lean is None else model.lean.parts.compiled_sizes
    in_torch = f"{model.impl} compiled for {', '.join(map(str, sizes))} tokens" if sizes else model.impl
    reason = model.native.reason if isinstance(model.native, Unfit) else "attention is not"
    multiplied = name_of_kernels(model.module)
    how = "made plain in each pass" if multiplied is None else f"multiplied by {multiplied}"
    plain = format_of and f"{format_of} {how}"
    kernels = kernels_of_maps(model, attention)
    maps = "" if kernels is None else f", maps {kernels.name}"
    return f"{in_torch}{plain}{maps}, attention {attention}{cached}; not native: {reason}"
