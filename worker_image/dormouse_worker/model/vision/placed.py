"""Which rows of a pass are an image's, and the rows themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dormouse_worker.common.images import ImageInput
from dormouse_worker.model.scratch import Floats
from dormouse_worker.model.tensors import Tensor

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Placed:
    """A run of rows of the packed input that are an image's."""

    start: int  # in the packed input
    digest: bytes
    first_row: int  # of the image
    count: int


@dataclass(frozen=True, slots=True)
class ImageRows:
    """What stands at [start, start + n) of the packed input in place of embedded tokens."""

    start: int
    rows: torch.Tensor  # [n, H · (1 + D)]: embedded, then what is added behind each of the first D layers


@dataclass(frozen=True, slots=True)
class Seen:
    """What a pass begins with that looks up no tokens itself."""

    embedded: Tensor  # [T, H]; an array of float32 where there is no torch
    deep: torch.Tensor | None = None  # [D, T, H] what is added behind the first layers; None = nothing
    beside: Floats | None = None  # [T, H] what stands before each row where a layer reads both; None = nothing


def place(images: Sequence[ImageInput], start: int, end: int, at: int) -> Iterator[Placed]:
    """Yield the runs within a sequence's tokens [start, end), which begin at the row `at` of the packed input."""
    for image in images:
        first_row = 0
        for first, count in image.spans:
            begin, stop = max(start, first), min(end, first + count)
            if begin < stop:
                yield Placed(at + begin - start, image.digest, first_row + begin - first, stop - begin)
            first_row += count


def put_rows(embedded: torch.Tensor, images: Sequence[ImageRows]) -> Seen:
    """Write the images' rows, at least one's, into embedded tokens [T, H], in place."""
    import torch

    size = embedded.shape[1]
    num_deep = images[0].rows.shape[1] // size - 1
    deep = embedded.new_zeros(num_deep, *embedded.shape) if num_deep else None
    for image in images:
        first, *others = torch.split(image.rows, size, dim=1)
        place = slice(image.start, image.start + len(first))
        embedded[place] = first
        if deep is not None:
            deep[:, place] = torch.stack(others)
    return Seen(embedded, deep)
