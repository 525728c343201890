"""What one pass encodes, and how far its prompts go: up to the first image that finds no room, or no time.

Images are encoded before the pass that needs their first row, and its sequences wait for that. Beside sequences that
decode one image is encoded at most, else as many rows as the pass may have tokens; the first image always goes.

Sequences without images have not asked for that. Beside one that decodes no image is encoded before a pass: one at a
time is encoded between passes, first in line first, until it is done or no such sequence is left. And prompts, from
their first image on, have few rows of a pass: `Pace` says how many. Images that are computed in one pass are not cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dormouse_worker.common.images import ImageInput
from dormouse_worker.engine.batch import EncodeImage, ScheduledSequence
from dormouse_worker.engine.images.encoder_cache import EncoderCache
from dormouse_worker.engine.request import Request


@dataclass(slots=True)
class ImageTurn:
    """The images of one pass in the making."""

    cache: EncoderCache
    rows_left: int  # that may be encoded
    beside: Sequence[Request] = ()  # who runs, where images may be encoded between passes
    encode: list[EncodeImage] = field(default_factory=list)
    waiting: set[str] = field(default_factory=set)  # ids of requests that go no further in this pass, beside text
    num_prompt_rows: int = 0  # of prompts with images, beside text
    _wanted: tuple[Request, ImageInput] | None = None  # the first in line that waits for its image
    _needed: set[bytes] = field(default_factory=set)  # by sequences of this pass
    _is_beside_text: bool | None = None  # None = nobody has asked

    def reach(self, request: Request, end: int, sequences: Sequence[ScheduledSequence]) -> int:
        """Return how far a request gets that would go up to `end` in this pass, which has these sequences already.

        No further than it is where the next token's image must wait, or no row is left for it.
        """
        end = self._before_images(request, end, sequences)
        most_rows = max(0, self.cache.pace.most_rows - self.num_prompt_rows)  # a last token goes however many there are
        if self._has_few_rows() and _rows_from_image(request, end) > most_rows:
            end = _image_start(request) + most_rows
            if end == request.num_computed_tokens:
                self.waiting.add(request.request_id)
        return end

    def _before_images(self, request: Request, end: int, sequences: Sequence[ScheduledSequence]) -> int:
        """Return `end`, or where the first image begins that finds no room, or no time."""
        if self.cache.are_whole:
            end = max(request.num_computed_tokens, _before_a_cut(request, end))
        start, kept = request.num_computed_tokens, self.cache.kept(self._needed)
        rows_left, is_first = self.rows_left, not self.encode
        for image in _images_at(request, start, end):
            if image.digest in kept:
                continue
            kept[image.digest] = image.num_rows
            is_new = not self.cache.holds(image.digest)
            has_time = is_first or (image.num_rows <= rows_left and not _any_decodes(sequences))
            has_time = has_time or self._yields()
            if (is_new and not has_time) or sum(kept.values()) > self.cache.num_rows:
                return max(start, image.start)
            if is_new and self._yields():
                self.waiting.add(request.request_id)
                self._wanted = self._wanted or (request, image)
                return max(start, image.start)
            if is_new:
                rows_left, is_first = rows_left - image.num_rows, False
        return end

    def begin(self) -> EncodeImage | None:
        """Let the first image that waits be encoded between passes, unless another one is; return which one is then."""
        if self._wanted is not None and self.cache.ahead is None:
            self.cache.begin(*self._wanted, self._needed)
        self.cache.pace.begin(self.num_prompt_rows, encodes=self.cache.ahead is not None)
        return self.cache.ahead

    def _yields(self) -> bool:
        if self._is_beside_text is None:
            self._is_beside_text = any(not request.images and not request.is_prompt for request in self.beside)
        return self._is_beside_text

    def _has_few_rows(self) -> bool:
        return not self.cache.are_whole and self._yields()

    def take(self, request: Request, start: int, end: int) -> None:
        """Encode what the request needs for its tokens at [start, end); let go of what it needs no longer then."""
        images = [*_images_at(request, start, end)]
        self._needed.update(image.digest for image in images)  # none of them makes way for another
        for image in images:
            if not self.cache.holds(image.digest):
                self.encode.append(self.cache.put(image, self._needed))
                self.rows_left -= image.num_rows
            self.cache.hold(image.digest, request.request_id)
        behind = [image for image in request.images if image.end <= end]
        rest = {image.digest for image in request.images if image.start < end < image.end}
        self.cache.let_go(request.request_id, [image for image in behind if image.digest not in rest])
        if self._has_few_rows():
            self.num_prompt_rows += _rows_from_image(request, end)


def _image_start(request: Request) -> int:
    """Return where the request goes on, or where its first image begins."""
    return max(request.num_computed_tokens, request.images[0].start)


def _rows_from_image(request: Request, end: int) -> int:
    """Return how many rows of a pass up to `end` count as those of a prompt with images."""
    return max(0, end - _image_start(request))


def _images_at(request: Request, start: int, end: int) -> Iterator[ImageInput]:
    """Yield the images of which tokens at [start, end) are computed."""
    return (image for image in request.images if image.start < end and start < image.end)


def _before_a_cut(request: Request, end: int) -> int:
    """Return `end`, or where a run of an image's tokens begins of which it would leave some behind."""
    spans = (span for image in request.images for span in image.spans)
    return next((first for first, count in spans if first < end < first + count), end)


def _any_decodes(sequences: Sequence[ScheduledSequence]) -> bool:
    return any(sequence.samples and sequence.num_known - sequence.start == 1 for sequence in sequences)
