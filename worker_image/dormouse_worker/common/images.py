"""One image of a prompt, as the front hands it to the engine: its pixels lie in a file, processed by transformers.

A video is as many of them as it has steps in time: its encoders compute each by itself.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

import msgspec


class Noun(NamedTuple):
    """How messages call what an encoder reads."""

    one: str
    several: str


IMAGES, SOUNDS = Noun("an image", "images"), Noun("a sound", "sounds")


class ImageInput(msgspec.Struct, frozen=True):
    """Where an image stands in the prompt, and what its model's encoder gets.

    Token ids within a span are the model's placeholders; each is computed from one row of the encoder, in order.
    """

    digest: bytes  # SHA-256 of the decoded pixels and of the processor's settings: equal ones have equal rows
    spans: list[tuple[int, int]]  # ascending (start, number of tokens) in the prompt; a tiled image has several
    tensors: str  # a file below the pod's folder for them: safetensors, as the processor returned them for this image
    num_bytes: int  # of that file
    grid: tuple[int, int, int] | None = None  # patches in time, height, width, of models whose positions are 3-D
    # Of frames of a video that count their rows' time from its first ones: how many images of it are before these, and
    # how far behind those these are in time. Height and width count from where the first ones begin.
    moment: tuple[int, int] | None = None

    @property
    def name(self) -> bytes:
        """Return what keys and values of its tokens depend on, beside what comes before: rows, and where they turn."""
        return self.digest if self.moment is None else self.digest + array("q", self.moment).tobytes()

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
