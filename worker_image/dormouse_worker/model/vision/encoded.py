"""The rows of images that a rank holds. The engine says what is encoded and what is freed; a new runner holds none."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import torch

from dormouse_worker.engine.batch import Batch, EncodeImage
from dormouse_worker.model.vision.placed import ImageRows, Placed
from dormouse_worker.model.vision.tower import ImageTower

logger = logging.getLogger(__name__)


class EncodedImages:
    """Owns the rows, by digest."""

    def __init__(self, tower: ImageTower | None) -> None:
        self._tower = tower
        self._rows: dict[bytes, torch.Tensor] = {}

    def __repr__(self) -> str:
        return f"EncodedImages({len(self._rows)} images)"

    def update(self, batch: Batch) -> dict[bytes, str]:
        """Free and encode what the batch says; return which images cannot be encoded, and why.

        Those have rows of zeros, so that the pass goes on for the sequences beside.
        """
        if batch.is_fresh:
            self._rows.clear()
        for digest in batch.freed_images:
            self._rows.pop(digest, None)
        unreadable: dict[bytes, str] = {}
        for image in batch.encode:
            why = self._encode(image)
            if why is not None:
                unreadable[image.digest] = why
        return unreadable

    def find(self, placed: Iterable[Placed]) -> tuple[ImageRows, ...]:
        """Return the rows that stand in a pass."""
        return tuple(
            ImageRows(run.start, self._rows[run.digest][run.first_row : run.first_row + run.count]) for run in placed
        )

    def _encode(self, image: EncodeImage) -> str | None:
        assert self._tower is not None, "the engine takes no images where there is no tower"
        try:
            self._rows[image.digest] = self._tower.encode(image)
        except Exception as error:
            logger.warning("an image of %d rows cannot be encoded", image.num_rows, exc_info=True)
            self._rows[image.digest] = torch.zeros(
                image.num_rows, self._tower.row_size, dtype=self._tower.dtype, device=self._tower.device
            )
            return f"an image cannot be encoded: {error}"
        return None
