"""Passes that our kernels compute, with no torch on the way."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.attention.interface import AttentionBackend
from dormouse_worker.model.attention.paged import PagedContext
from dormouse_worker.model.context import forward_context
from dormouse_worker.model.forward.in_torch import TorchForward
from dormouse_worker.model.input_batch import PackedInput
from dormouse_worker.model.lean.native import NativeDecoder
from dormouse_worker.model.scratch import Floats
from dormouse_worker.model.vision.placed import ImageRows


class NativePath:
    """Implements `ForwardPath`. Reads its cache, its group and its scratch from the torch path beside it."""

    def __init__(self, decoder: NativeDecoder, backend: AttentionBackend, beside: TorchForward) -> None:
        self._decoder = decoder
        self._seeing = decoder.from_embedded()  # computes passes with images
        self._backend = backend
        self._beside = beside

    def __repr__(self) -> str:
        return f"NativePath({self._decoder!r})"

    def fits(self, packed: PackedInput, rows: Ints) -> bool:
        """See `ForwardPath`. Weights that still arrive are waited for layer by layer, which these kernels cannot."""
        del packed, rows
        return not self._beside.model.weights.is_arriving

    @torch.inference_mode()
    def compute(self, packed: PackedInput, rows: Ints, images: Sequence[ImageRows] = ()) -> Floats:
        """See `ForwardPath`. Raises IndexError for a token or a row that is not there, RankLost."""
        beside = self._beside
        plans = [self._backend.plan(group, beside.model.device) for group in packed.groups]
        context = PagedContext(beside.cache, plans, beside.scratch)
        if images:
            with forward_context(context, beside.communicator):  # ranks meet where they embed
                seen = beside.model.see(torch.from_numpy(packed.token_ids), images)
            return self._seeing.forward(packed, rows, context, beside.communicator, seen)
        logits = self._decoder.forward(packed, rows, context, beside.communicator)
        if beside.states is not None:
            beside.states.take(beside.scratch)
        return logits
