"""One image of a prompt, as the front hands it to the engine: its pixels lie in a file, processed by transformers."""

from __future__ import annotations

import msgspec


class ImageInput(msgspec.Struct, frozen=True):
    """Where an image stands in the prompt, and what its model's encoder gets.

    Token ids within a span are the model's placeholders; each is computed from one row of the encoder, in order.
    """

    digest: bytes  # SHA-256 of the decoded pixels and of the processor's settings: equal ones have equal rows
    spans: list[tuple[int, int]]  # ascending (start, number of tokens) in the prompt; a tiled image has several
    tensors: str  # a file below the pod's folder for them: safetensors, as the processor returned them for this image
    num_bytes: int  # of that file
    grid: tuple[int, int, int] | None = None  # patches in time, height, width, of models whose positions are 3-D

    @property
    def start(self) -> int:
        """Return where its first token is."""
        return self.spans[0][0]

    @property
    def end(self) -> int:
        """Return where the tokens behind its last one begin."""
        start, count = self.spans[-1]
        return start + count

    @property
    def num_rows(self) -> int:
        """Return how many rows the encoder makes of it."""
        return sum(count for _, count in self.spans)

    def stands_in(self, start: int, end: int) -> bool:
        """Return whether any of the prompt's tokens at [start, end) is one of its."""
        return any(first < end and start < first + count for first, count in self.spans)
