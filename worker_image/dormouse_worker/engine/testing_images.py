"""A fake for tests of the engine: what a rank holds of images, which it does not read."""

from __future__ import annotations

from dormouse_worker.engine.batch import Batch


class FakeEncoder:
    """Holds rows of images as long as batches say so. The engine may never ask for more than there is room for."""

    def __init__(self, num_rows: int) -> None:
        self.images: dict[bytes, int] = {}  # digest → rows
        self.most_pieces = 3  # passes in which an image is encoded that is `ahead`
        self.ahead: tuple[bytes, int] | None = None  # the digest of one, and in how many passes so far
        self._num_rows = num_rows

    def encode(self, batch: Batch) -> tuple[bytes, ...]:
        """Take what a batch says of images; return whose last piece it was."""
        if batch.is_fresh:
            self.images = {digest: rows for digest, rows in self.images.items() if digest in batch.known_images}
        else:
            assert not batch.known_images
        for digest in batch.freed_images:
            self.images.pop(digest, None)  # perhaps it was not yet done
        for image in batch.encode:
            assert image.digest not in self.images
            self.images[image.digest] = image.num_rows
        encoded = self._go_on(batch)
        assert sum(self.images.values()) <= self._num_rows
        return encoded

    def _go_on(self, batch: Batch) -> tuple[bytes, ...]:
        if batch.ahead is None:
            self.ahead = None
            return ()
        digest, known = batch.ahead.digest, self.ahead
        assert digest not in self.images
        num_pieces = 0 if batch.num_image_rows else 1
        num_pieces += known[1] if known is not None and known[0] == digest and not batch.is_fresh else 0
        self.ahead = (digest, num_pieces) if num_pieces < self.most_pieces else None
        if self.ahead is not None:
            return ()
        self.images[digest] = batch.ahead.num_rows
        return (digest,)
