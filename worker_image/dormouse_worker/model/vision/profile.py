"""What images take of the memory that is profiled: the encoder's peak; beside each pass rows, and half an image."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from dormouse_worker.common.host import Host, PeakMeter
from dormouse_worker.model.vision.pieces import AfterEach
from dormouse_worker.model.vision.tower import ImageTower


class Seeing(Protocol):
    """A model that may see images."""

    @property
    def tower(self) -> ImageTower | None:
        """Return its encoder of images, None where it sees none."""

    @property
    def image_rows(self) -> int:
        """Return how many rows of images are kept at most."""


@contextmanager
def profiled_images(model: Seeing) -> Iterator[None]:
    """Encode the largest image, with as many rows as are ever kept; keep them over the block.

    Where images are encoded between passes, as much is kept, too, as that image takes where it stops.
    """
    tower = model.tower
    if tower is None:
        yield
        return
    rows = torch.ones(model.image_rows, tower.row_size, dtype=tower.dtype, device=tower.device)
    half = torch.ones(most_between(tower, Host()), dtype=torch.uint8)
    yield
    del rows, half


def most_between(tower: ImageTower, meter: PeakMeter) -> int:
    """Encode the largest image; return the most bytes that it held between two operations, on processors."""
    before = highest = meter.resident_bytes()

    def note() -> None:
        nonlocal highest
        highest = max(highest, meter.resident_bytes())

    if tower.device.type != "cpu":
        tower.compute(tower.largest())
        return 0
    with AfterEach(note):
        tower.compute(tower.largest())
    return highest - before
