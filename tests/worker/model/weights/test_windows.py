"""How the arena is cut for reading and copying."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from dormouse_worker.model.checksum import BLOCK_BYTES
from dormouse_worker.model.weights.layout import plan_layout
from dormouse_worker.model.weights.windows import cut_windows

MIB = 1 << 20


def layout_of(*sizes):
    with torch.device("meta"):
        return plan_layout([(str(i), torch.empty(size, dtype=torch.uint8)) for i, size in enumerate(sizes)])


def spans(windows):
    return [[(piece.slot.name, piece.start, piece.end) for piece in window.pieces] for window in windows]


def test_small_tensors_share_a_window():
    windows = cut_windows(layout_of(10, 20, 30), MIB)
    assert spans(windows) == [[("0", 0, 10), ("1", 0, 20), ("2", 0, 30)]]
    assert (windows[0].start, windows[0].end) == (0, 1024 + 30)


def test_a_large_tensor_has_several():
    windows = cut_windows(layout_of(5 * MIB, 7), 2 * MIB)
    assert spans(windows) == [[("0", 0, 2 * MIB)], [("0", 2 * MIB, 4 * MIB)], [("0", 4 * MIB, 5 * MIB), ("1", 0, 7)]]


def test_nothing_has_none():
    assert cut_windows(layout_of()) == ()
    assert cut_windows(layout_of(0)) == ()


@given(st.lists(st.integers(0, 7 * MIB), max_size=8), st.integers(1, 4))
def test_every_byte_is_in_one_piece_and_no_window_is_too_long(sizes, num_mib):
    layout = layout_of(*sizes)
    windows = cut_windows(layout, num_mib * MIB)
    pieces = [piece for window in windows for piece in window.pieces]
    covered = {slot.name: 0 for slot in layout.slots}
    for piece in pieces:
        assert piece.start == covered[piece.slot.name], "in order, without a gap"
        assert piece.start % BLOCK_BYTES == 0
        covered[piece.slot.name] = piece.end
    assert covered == {slot.name: slot.num_bytes for slot in layout.slots}
    assert all(0 < window.end - window.start <= num_mib * MIB for window in windows)
    ends = [0, *(window.end for window in windows)]
    assert all(end <= window.start for end, window in zip(ends, windows, strict=False))
