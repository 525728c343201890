"""What images take of the memory that is profiled: the encoder's peak, and beside each pass the rows that are kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dormouse_worker.model.loader import LoadedModel


@contextmanager
def profiled_images(model: LoadedModel) -> Iterator[None]:
    """Encode the largest image, with as many rows as are ever kept; keep them over the block."""
    tower = model.tower
    if tower is None:
        yield
        return
    rows = torch.ones(model.image_rows, tower.row_size, dtype=tower.dtype, device=tower.device)
    tower.compute(tower.largest())
    yield
    del rows
