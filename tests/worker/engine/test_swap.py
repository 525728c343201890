"""Blocks in host memory."""

import pytest

from dormouse_worker.engine.block_tables import ABSENT
from dormouse_worker.engine.swap import SwapSpace


def test_a_sequence_goes_out_and_comes_back_with_its_shape():
    swap = SwapSpace(4)
    table = ([5, 7], [ABSENT, 6])
    assert swap.has_room(table)
    swap.take("a", table)
    assert swap.moves_out() == ((5, 0), (7, 1), (6, 2))
    assert swap.moves_out() == ()
    assert "a" in swap
    assert swap.shape("a") == [[True, True], [False, True]]
    swap.check_integrity()
    assert swap.give("a", ([1, 2, 9], [ABSENT, 3, 8])) == ((0, 1), (1, 2), (2, 3))
    assert "a" not in swap
    assert repr(swap) == "SwapSpace(total=4, free=4, sequences=0)"


def test_room_is_counted_in_present_blocks():
    swap = SwapSpace(2)
    assert swap.has_room(([1, 2], [ABSENT, ABSENT]))
    assert not swap.has_room(([1, 2], [ABSENT, 3]))
    assert not SwapSpace(0).has_room(([1],))


def test_a_dropped_sequence_leaves_nothing():
    swap = SwapSpace(2)
    swap.take("a", ([4, 5],))
    swap.drop("a")
    swap.drop("a")
    assert swap.num_free == 2
    swap.check_integrity()


def test_a_lost_block_is_found():
    swap = SwapSpace(2)
    swap._free.pop()
    with pytest.raises(RuntimeError, match="1 free \\+ 0 held of 2"):
        swap.check_integrity()


def test_a_sequence_goes_out_once():
    swap = SwapSpace(2)
    swap.take("a", ([4],))
    with pytest.raises(AssertionError):
        swap.take("a", ([5],))
