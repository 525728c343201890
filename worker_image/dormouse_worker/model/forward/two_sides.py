"""Passes of models whose prompts an encoder reads: which tokens are whose, and where they lie in the cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.encoder_decoder.network import Network, Span
from dormouse_worker.model.forward.in_torch import DeviceInput, TorchForward
from dormouse_worker.model.input_batch import PackedInput
from dormouse_worker.model.to_device import to_device
from dormouse_worker.model.vision.placed import ImageRows


class TwoSidedPath:
    """Implements `ForwardPath`: any pass of such a model."""

    def __init__(self, forward: TorchForward, inputs: DeviceInput) -> None:
        """`forward` has the model and its cache."""
        self._forward = forward
        self._inputs = inputs
        self._network = Network(forward.model.module)

    def __repr__(self) -> str:
        return f"TwoSidedPath({self._network!r})"

    def fits(self, packed: PackedInput, rows: Ints) -> bool:
        """See `ForwardPath`."""
        del packed, rows
        return True

    @torch.inference_mode()
    def compute(self, packed: PackedInput, rows: Ints, images: Sequence[ImageRows] = ()) -> torch.Tensor:
        """See `ForwardPath`. Rows of a source get what the head says of the encoder's states."""
        del images  # there are none
        model, cache = self._forward.model, self._forward.cache
        model.weights.arrive()
        token_ids = self._inputs.bring(packed)[0]
        ends = np.array([sequence.source_end for sequence in packed.batch_rows.sequences])
        positions = to_device(packed.positions - np.repeat(ends, np.diff(packed.query_starts)), model.device)
        hidden = self._network.forward(token_ids, positions, _spans(packed, model.device), cache)
        return self._network.logits(hidden[to_device(rows, model.device)])


def _spans(packed: PackedInput, device: torch.device) -> list[Span]:
    (group,) = packed.groups
    size = group.block_size
    places = np.arange(int(group.context_lens.max()))
    spans, first_row = list[Span](), 0
    for index, sequence in enumerate(packed.batch_rows.sequences):
        begin, stop = (int(packed.query_starts[index + step]) for step in (0, 1))
        end, context = sequence.source_end, int(group.context_lens[index])
        known = places[:context]
        slots = to_device(group.block_tables[index][known // size] * size + known % size, device)
        reads = context - (stop - begin) < end  # from its first token on: sources are never divided
        target = begin + end if reads else begin
        rows = slice(first_row, first_row + stop - target)
        source = slice(begin, begin + sequence.num_source_tokens if reads else begin)
        whole = slots[: sequence.num_source_tokens]
        spans.append(Span(source, slice(target, stop), whole, slots[end:], rows))
        first_row = rows.stop
    return spans
