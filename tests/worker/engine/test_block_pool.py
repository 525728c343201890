"""The pool: free, cached and used blocks."""

import pytest

from dormouse_worker.engine.block_pool import BlockPool

KEY, OTHER = (0, b"key"), (0, b"other")


def test_low_numbers_come_first_and_come_back():
    pool = BlockPool(3)
    assert pool.allocate(2) == [0, 1]
    pool.release([0, 1])
    assert pool.allocate(3) == [0, 1, 2]
    assert repr(pool) == "BlockPool(total=3, free=0, cached=0, used=3)"


def test_a_released_prefix_is_cached_and_found():
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.name(block, KEY)
    pool.release([block])
    assert repr(pool) == "BlockPool(total=2, free=1, cached=1, used=0)"
    assert pool.find(KEY) == block
    assert pool.find(OTHER) is None
    assert (pool.num_available, pool.num_cached, pool.count_cached([block, 1])) == (2, 1, 1)


def test_a_shared_block_is_free_only_when_its_last_holder_gives_it_back():
    pool = BlockPool(1)
    pool.allocate(1)
    pool.name(0, KEY)
    pool.hold(0)
    pool.release([0])
    assert pool.num_used == 1
    pool.check_integrity([0])
    pool.release([0])
    assert (pool.num_used, pool.num_cached) == (0, 1)
    pool.hold(0)
    assert (pool.num_used, pool.num_cached) == (1, 0)


def test_free_blocks_are_used_before_cached_ones_and_of_these_the_least_recently_used():
    pool = BlockPool(4)
    for block in pool.allocate(3):
        pool.name(block, (0, bytes([block])))
    pool.release([1])
    pool.release([0, 2])
    assert pool.allocate(4) == [3, 1, 2, 0]
    assert [pool.find((0, bytes([block]))) for block in range(3)] == [None] * 3


def test_what_follows_a_prefix_is_dropped_before_the_prefix():
    pool = BlockPool(2)
    for block in pool.allocate(2):
        pool.name(block, (0, bytes([block])))
    pool.release([0, 1])
    assert pool.allocate(1) == [1]
    assert pool.find((0, bytes([0]))) == 0


def test_the_first_block_of_a_prefix_keeps_the_name():
    pool = BlockPool(2)
    pool.allocate(2)
    pool.name(0, KEY)
    pool.name(1, KEY)
    pool.name(0, OTHER)
    assert (pool.find(KEY), pool.find(OTHER)) == (0, None)
    pool.check_integrity([0, 1])


def test_all_prefixes_can_be_forgotten():
    pool = BlockPool(3)
    for block in pool.allocate(2):
        pool.name(block, (0, bytes([block])))
    pool.release([0])
    pool.forget_prefixes()
    assert repr(pool) == "BlockPool(total=3, free=2, cached=0, used=1)"
    assert pool.find((0, bytes([1]))) is None
    pool.check_integrity([1])
    pool.release([1])
    assert pool.num_cached == 0


@pytest.mark.parametrize(("held", "count"), [([0], 1), ([0, 1, 1], 2), ([0, 1, 2], 3)])
def test_a_wrong_count_of_holders_is_found(held, count):
    pool = BlockPool(3)
    pool.allocate(2)
    pool.check_integrity([0, 1])
    words = rf"^blocks are wrong: 1 free \+ 0 cached \+ {count} held of 3; 0 names, holders counted wrong$"
    with pytest.raises(RuntimeError, match=words):
        pool.check_integrity(held)


def test_a_name_without_its_block_is_found():
    pool = BlockPool(1)
    pool.allocate(1)
    pool.name(0, KEY)
    del pool._key_of[0]
    with pytest.raises(RuntimeError, match="blocks are wrong"):
        pool.check_integrity([0])


def test_a_cached_block_without_a_name_is_found():
    pool = BlockPool(1)
    pool._cached[pool._free.pop()] = None
    with pytest.raises(RuntimeError, match="blocks are wrong"):
        pool.check_integrity([])


def test_a_lost_block_is_found():
    pool = BlockPool(2)
    pool._free.pop()
    with pytest.raises(RuntimeError, match=r"1 free \+ 0 cached \+ 0 held of 2; 0 names, holders counted right$"):
        pool.check_integrity([])


@pytest.mark.parametrize(
    "misuse",
    [
        lambda p: p.allocate(3),
        lambda p: p.hold(0),
        lambda p: p.release([0]),
        lambda p: p.name(0, KEY),
        lambda p: BlockPool(p.num_used),
    ],
)
def test_misuse_is_a_mistake_of_ours(misuse):
    with pytest.raises(AssertionError):
        misuse(BlockPool(2))


def test_each_block_that_comes_back_and_each_forgetting_is_a_new_generation():
    pool = BlockPool(3)
    pool.allocate(2)
    pool.name(0, KEY)
    pool.hold(0)
    pool.release([0])
    assert pool.generation == 0
    pool.release([0, 1])
    assert pool.generation == 2
    pool.forget_prefixes()
    assert pool.generation == 3
