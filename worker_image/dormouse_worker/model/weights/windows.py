"""What is read and copied in one go: windows of the arena, made of pieces of tensors. Pure arithmetic.

arena    | embedding                      | q k v | o | gate up | ...
pieces   |     0     |     1     |   2    |  0 0 0| 0 |  0   0  |         cut where a checksum's blocks begin
windows  |-----------|-----------|--------------------|---------|         whole pieces, at most so many bytes
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dormouse_worker.model.checksum import BLOCK_BYTES
from dormouse_worker.model.weights.layout import Slot, WeightLayout

WINDOW_BYTES = (
    4 << 20
)  # enough for a GPU's copies at full speed, several being under way; a few fit a processor's cache


@dataclass(frozen=True, slots=True)
class Piece:
    """The bytes [start, end) of one tensor; `start` is a multiple of a checksum's block."""

    slot: Slot
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Window:
    """The bytes [start, end) of the arena."""

    start: int
    end: int
    pieces: tuple[Piece, ...]


def cut_windows(layout: WeightLayout, window_bytes: int = WINDOW_BYTES) -> tuple[Window, ...]:
    """Return windows in the order of the arena, none longer than `window_bytes`, a multiple of a checksum's block."""
    assert window_bytes % BLOCK_BYTES == 0, window_bytes
    windows: list[Window] = []
    pieces: list[Piece] = []
    for piece in _pieces(layout, window_bytes):
        if pieces and _end(piece) - _start(pieces[0]) > window_bytes:
            windows.append(_window(pieces))
            pieces = []
        pieces.append(piece)
    if pieces:
        windows.append(_window(pieces))
    return tuple(windows)


def _pieces(layout: WeightLayout, piece_bytes: int) -> Iterator[Piece]:
    for slot in layout.slots:
        for start in range(0, slot.num_bytes, piece_bytes):
            yield Piece(slot, start, min(start + piece_bytes, slot.num_bytes))


def _window(pieces: list[Piece]) -> Window:
    return Window(_start(pieces[0]), _end(pieces[-1]), tuple(pieces))


def _start(piece: Piece) -> int:
    return piece.slot.offset + piece.start


def _end(piece: Piece) -> int:
    return piece.slot.offset + piece.end
