"""The rows of images that a rank holds. The engine says what is encoded and what is freed.

A new runner holds none, but for those that outlived a sleep.

On processors one image may be encoded between passes, in pieces: it gets a share of their time, so that sequences
beside wait little for it. Who closes this drops it; so does a pass that does not name it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from dormouse_worker.engine.batch import Batch, EncodeImage
from dormouse_worker.engine.images.pace import SHARE
from dormouse_worker.model.pieces import Pieces
from dormouse_worker.model.vision.pieces import encoder_pieces
from dormouse_worker.model.vision.placed import ImageRows, Placed
from dormouse_worker.model.vision.tower import ImageTower

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ImageNews:
    """What became of the images of a batch."""

    encoded: tuple[bytes, ...] = ()  # between passes, the last piece just now
    unreadable: dict[bytes, str] = field(default_factory=dict)  # which cannot be encoded, and why


@dataclass(slots=True)
class _Ahead:
    """The image that is encoded between passes."""

    digest: bytes
    pieces: Pieces[torch.Tensor]
    stopped_s: float  # when its last piece ended
    credit_s: float = 0.0  # a piece ends with an operation, and may take more time than it has


class EncodedImages:
    """Owns the rows, by digest."""

    def __init__(self, tower: ImageTower | None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._tower = tower
        self._clock = clock
        self.rows: dict[bytes, torch.Tensor] = {}
        self._ahead: _Ahead | None = None

    def __repr__(self) -> str:
        return f"EncodedImages({len(self.rows)} images{', one under way' if self._ahead else ''})"

    def update(self, batch: Batch) -> ImageNews:
        """Free and encode what the batch says; return what became of it.

        Images that cannot be encoded have rows of zeros, so that the pass goes on for the sequences beside.
        """
        if batch.is_fresh:
            self._leave()
            for digest in self.rows.keys() - {*batch.known_images}:
                del self.rows[digest]
        for digest in batch.freed_images:
            self.rows.pop(digest, None)
        news = ImageNews()
        for image in batch.encode:
            self._encode(image, news)
        self._go_on(batch.ahead, news, rests=batch.num_image_rows > 0)
        return news

    def find(self, placed: Iterable[Placed]) -> tuple[ImageRows, ...]:
        """Return the rows that stand in a pass."""
        return tuple(
            ImageRows(run.start, self.rows[run.digest][run.first_row : run.first_row + run.count]) for run in placed
        )

    def close(self) -> None:
        """Drop all rows, and what is under way."""
        self.rows.clear()
        self._leave()

    def _encode(self, image: EncodeImage, news: ImageNews) -> None:
        """Encode an image whose rows this pass needs, or the rest of it."""
        tower, ahead = self._has_tower(), self._ahead
        is_under_way = ahead is not None and ahead.digest == image.digest
        try:
            self.rows[image.digest] = ahead.pieces.finish() if ahead and is_under_way else tower.encode(image)
        except Exception as error:
            what = tower.family.noun.one
            logger.warning("%s of %d rows cannot be encoded", what, image.num_rows, exc_info=True)
            news.unreadable[image.digest] = f"{what} cannot be encoded: {error}"
            self.rows[image.digest] = torch.zeros(
                image.num_rows, tower.row_size, dtype=tower.dtype, device=tower.device
            )

    def _go_on(self, image: EncodeImage | None, news: ImageNews, *, rests: bool) -> None:
        """Encode a piece of the image that later passes need; none where it rests, nor for the time until then."""
        if self._ahead is not None and (image is None or image.digest != self._ahead.digest):
            self._leave()
        if self._ahead is not None and rests:
            self._ahead.stopped_s = self._clock()
        if image is None or rests:
            return
        if self._is_ready(image):
            self._encode(image, news)
            self._ahead = None
            if image.digest not in news.unreadable:
                news.encoded = (image.digest,)

    def _is_ready(self, image: EncodeImage) -> bool:
        """Let a piece be encoded; return whether all are. Elsewhere than on processors there are none."""
        if self._has_tower().device.type != "cpu":
            return True
        if self._ahead is None:
            self._ahead = self._begin(image)
        return self._advance(self._ahead)

    def _begin(self, image: EncodeImage) -> _Ahead:
        tower = self._has_tower()
        pieces = encoder_pieces(lambda: tower.encode(image), self._clock)
        return _Ahead(image.digest, pieces, self._clock())

    def _advance(self, ahead: _Ahead) -> bool:
        """Let it have its share of the time since its last piece; return whether it is done."""
        now_s = self._clock()
        ahead.credit_s += SHARE * (now_s - ahead.stopped_s)
        ahead.stopped_s = now_s
        if ahead.credit_s > 0:
            ahead.pieces.advance(ahead.credit_s)
            ahead.stopped_s = self._clock()
            ahead.credit_s -= ahead.stopped_s - now_s
        return ahead.pieces.is_done

    def _leave(self) -> None:
        if self._ahead is not None:
            self._ahead.pieces.leave()
            self._ahead = None

    def _has_tower(self) -> ImageTower:
        assert self._tower is not None, "the engine takes no images where there is no tower"
        return self._tower
