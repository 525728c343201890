"""What a way to compute a forward pass has to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from dormouse_worker.model.arrays import Ints
from dormouse_worker.model.input_batch import PackedInput
from dormouse_worker.model.scratch import Floats
from dormouse_worker.model.vision.placed import ImageRows

if TYPE_CHECKING:
    import torch


class ForwardPath(Protocol):
    """One way to compute passes over a model and its cache."""

    def fits(self, packed: PackedInput, rows: Ints) -> bool:
        """Return whether it computes this pass, of which the ascending `rows` are wanted. Same bits as the others."""

    def compute(self, packed: PackedInput, rows: Ints, images: Sequence[ImageRows] = ()) -> torch.Tensor | Floats:
        """Return the logits [len(rows), V] of a pass that fits; they hold until the next pass.

        `images` are the rows of `packed.images`.

        Raises what the device, the model or another rank raises.
        """
