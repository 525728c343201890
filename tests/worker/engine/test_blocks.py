"""The allocator: conservation, growth, integrity."""

import pytest

from dormouse_worker.engine.blocks import BlockAllocator


def test_a_sequence_holds_as_many_blocks_as_its_tokens_need():
    blocks = BlockAllocator(num_blocks=5, block_size=4)
    assert blocks.grow("a", 4)
    assert blocks.table("a") == [0]
    assert blocks.grow("a", 5)
    assert blocks.table("a") == [0, 1]
    assert (blocks.num_free, blocks.num_used, blocks.usage) == (3, 2, 0.4)


def test_growing_to_the_same_or_a_smaller_length_changes_nothing():
    blocks = BlockAllocator(5, 4)
    assert blocks.grow("a", 8)
    assert blocks.grow("a", 8)
    assert blocks.grow("a", 1)
    assert blocks.table("a") == [0, 1]


def test_a_growth_that_does_not_fit_changes_nothing():
    blocks = BlockAllocator(2, 4)
    assert blocks.grow("a", 4)
    assert not blocks.grow("b", 8)
    assert not blocks.grow("a", 12)
    assert repr(blocks) == "BlockAllocator(total=2, free=1, used=1, sequences=1)"
    blocks.check_integrity()


def test_freed_blocks_come_back_and_are_given_again():
    blocks = BlockAllocator(2, 4)
    assert blocks.grow("a", 8)
    blocks.free("a")
    assert blocks.table("a") == []
    assert blocks.grow("b", 8)
    assert blocks.table("b") == [0, 1]


def test_freeing_a_sequence_that_holds_nothing_is_nothing():
    blocks = BlockAllocator(2, 4)
    blocks.free("unknown")
    assert repr(blocks) == "BlockAllocator(total=2, free=2, used=0, sequences=0)"


def test_a_lost_block_is_found_by_the_recount():
    blocks = BlockAllocator(3, 4)
    blocks.grow("a", 4)
    blocks._free.pop()
    with pytest.raises(RuntimeError, match="1 free \\+ 1 held, 2 distinct, 3 in all"):
        blocks.check_integrity()


def test_a_block_with_two_owners_is_found_by_the_recount():
    blocks = BlockAllocator(3, 4)
    blocks.grow("a", 4)
    blocks._tables["b"] = list(blocks.table("a"))
    with pytest.raises(RuntimeError, match="2 free \\+ 2 held, 3 distinct, 3 in all"):
        blocks.check_integrity()
