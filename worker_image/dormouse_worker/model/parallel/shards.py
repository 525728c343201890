"""Which slice of which tensor a rank holds. Pure arithmetic; all ranges are half-open.

whole, dim 0     |  q: 0 1 2 3  |  k: 0 1  |  v: 0 1  |       rows of a fused projection
rank 1 of 2             2 3          1          1             three spans, behind each other in its memory
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from dormouse_worker.common.layout import Layout

Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Share:
    """What a rank holds of one tensor of the whole model: the indices of `spans` along one dimension."""

    name: str  # in the whole model; of a tied tensor the first one
    shape: tuple[int, ...]  # of the whole tensor
    dim: int = 0
    spans: Spans | None = None  # None = all of it

    def runs(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield (first, count) of the whole's elements which the elements [start, end) of the rank's part are.

        Elements are counted in row-major order; the runs come in the order of the part.
        """
        if self.spans is None:
            yield start, end - start
            return
        inner = prod(self.shape[self.dim + 1 :])
        line, whole_line = num_indices(self.spans) * inner, self.shape[self.dim] * inner
        while start < end:
            outer, place = divmod(start, line)
            first, left = _locate(self.spans, inner, place)
            count = min(left, end - start)
            yield outer * whole_line + first, count
            start += count


def num_indices(spans: Spans) -> int:
    """Return how many indices the spans cover."""
    return sum(stop - start for start, stop in spans)


def even(size: int, layout: Layout) -> Spans:
    """Return the rank's part of `size` indices, which T divides."""
    share = size // layout.tensor
    return ((layout.tensor_rank * share, (layout.tensor_rank + 1) * share),)


def packed(size: int, num_parts: int, layout: Layout) -> Spans:
    """Return the rank's part of each of several parts of one size that lie behind each other."""
    part = size // num_parts
    ((start, stop),) = even(part, layout)
    return tuple((i * part + start, i * part + stop) for i in range(num_parts))


def heads(size: int, num_heads: int, layout: Layout) -> Spans:
    """Return the rank's heads of a projection to `num_heads`; where there are more ranks, neighbours share one."""
    if num_heads >= layout.tensor:
        return even(size, layout)
    head, head_size = layout.tensor_rank * num_heads // layout.tensor, size // num_heads
    return ((head * head_size, (head + 1) * head_size),)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens [start, stop) whose embeddings and logits the rank holds; the last ranks may have fewer."""

    size: int
    layout: Layout

    @property
    def share(self) -> int:
        """Return how many tokens a rank has that is not among the last."""
        return -(-self.size // self.layout.tensor)

    @property
    def start(self) -> int:
        """Return the first token."""
        return min(self.layout.tensor_rank * self.share, self.size)

    @property
    def stop(self) -> int:
        """Return the token behind the last."""
        return min(self.start + self.share, self.size)


def _locate(spans: Spans, inner: int, place: int) -> tuple[int, int]:
    """Return where in a line of the whole the element at `place` of the part's line is, and how many follow on."""
    for start, stop in spans:
        size = (stop - start) * inner
        if place < size:
            return start * inner + place, size - place
        place -= size
    raise AssertionError(f"{place} is behind the last of {spans}")
