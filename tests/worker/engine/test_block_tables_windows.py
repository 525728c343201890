"""Block tables of layers with a window: what is given back, and how much of a prefix can be continued."""

from random import Random

import pytest

from dormouse_worker.engine.block_tables import ABSENT, BlockTables, CacheLayout, Prefix
from tests.worker.engine.tables_kit import CountingPool, empty, hashes, make_tables, run


def is_whole(tables, chain, count):
    """Say the slow way whether every group knows what a token behind so many blocks sees."""
    needed = [(group, index) for group in range(len(tables.layout.windows)) for index in range(count)]
    return all(
        tables.pool.find((group, chain[index])) is not None
        for group, index in needed
        if index >= tables.layout.first_needed(group, count * 4)
    )


class TestWindows:
    """Two groups: one sees everything, one the last six tokens; blocks of four."""

    WINDOWS = (None, 6)

    def test_blocks_behind_the_window_are_given_back(self):
        tables = make_tables(windows=self.WINDOWS)
        run(tables, "a", 18)
        full, window = tables.table("a")
        assert ABSENT not in full
        assert [block == ABSENT for block in window] == [True, True, True, False, False]
        assert tables.pool.num_used == 7
        tables.check_integrity()

    @pytest.mark.parametrize(("num_tokens", "num_given_back"), [(8, 0), (9, 1), (12, 1), (13, 2)])
    def test_not_one_token_too_early_or_too_late(self, num_tokens, num_given_back):
        """The token at position n sees [n - 5, n]; block b ends at 4 b + 4."""
        tables = make_tables(windows=(6,))
        run(tables, "a", num_tokens)
        assert tables.table("a")[0].count(ABSENT) == num_given_back

    def test_only_the_first_chunk_needs_blocks_where_a_window_is(self):
        tables = make_tables(windows=self.WINDOWS)
        assert tables.admit("a", empty(tables), 20, 8)
        assert [len(blocks) for blocks in tables.table("a")] == [5, 2]
        tables.commit("a", [], 8)
        assert tables.grow("a", 20, 16)
        assert [len(blocks) for blocks in tables.table("a")] == [5, 4]

    def test_a_prefix_needs_every_block_in_one_group_and_only_the_window_in_the_other(self):
        tables, chain = make_tables(windows=self.WINDOWS), hashes(4)
        run(tables, "a", 17, chain)
        full, window = tables.find_prefix(chain, 99).block_ids
        assert full == [0, 1, 2, 3]
        assert window[:2] == [ABSENT, ABSENT]
        assert tables.admit("b", Prefix(16, (full, window)), 18, 18)
        tables.check_integrity()
        tables.free("a")
        tables.free("b")
        assert tables.pool.num_used == 0
        tables.check_integrity()

    def test_blocks_behind_the_window_are_handed_out_last_ones_first(self):
        tables = make_tables(5, windows=(6,))
        run(tables, "a", 17, hashes(4))
        assert tables.pool.num_cached == 3
        assert tables.pool.allocate(3) == [2, 1, 0]

    @pytest.mark.parametrize(("dropped", "num_tokens"), [((2, 3), 8), ((3,), 12), ((0, 1), 16)])
    def test_a_prefix_whose_window_was_dropped_is_as_long_as_the_window_allows(self, dropped, num_tokens):
        tables, chain = make_tables(windows=self.WINDOWS), hashes(4)
        run(tables, "a", 17, chain)
        for index in dropped:
            block = tables.pool.find((1, chain[index]))
            del tables.pool._block_of[(1, chain[index])], tables.pool._key_of[block]
        assert tables.find_prefix(chain, 99).num_tokens == num_tokens

    @pytest.mark.parametrize("windows", [(None, 6), (6,), (None, 6, 11), (9, None)])
    def test_the_prefix_is_the_longest_that_every_group_can_continue(self, windows):
        chain, groups = hashes(6), range(len(windows))
        for seed in range(200):
            tables, rng = make_tables(50, windows), Random(seed)
            for key in [(group, name) for group in groups for name in chain if rng.random() < 0.75]:
                tables.pool.name(*tables.pool.allocate(1), key)
            longest = max(count for count in range(7) if is_whole(tables, chain, count))
            prefix = tables.find_prefix(chain, 99)
            assert prefix.num_tokens == longest * 4
            assert [len(blocks) for blocks in prefix.block_ids] == [longest] * len(windows)

    def test_a_long_prefix_without_its_window_is_searched_once_and_not_for_every_length(self):
        tables, chain = BlockTables(CountingPool(600), CacheLayout(4, (None, 6))), hashes(256)
        run(tables, "a", 4 * 256 + 1, chain)
        for name in chain:
            tables.pool._block_of.pop((1, name), None)
        assert tables.find_prefix(chain, 9999) == empty(tables)
        assert tables.pool.num_finds <= 2 * 256

    def test_no_common_prefix_is_an_empty_one(self):
        tables, chain = make_tables(windows=self.WINDOWS), hashes(4)
        run(tables, "a", 17, chain)
        for index in range(4):
            del tables.pool._block_of[(1, chain[index])]
        assert tables.find_prefix(chain, 99) == empty(tables)

    def test_most_blocks_are_the_window_a_chunk_and_two_blocks_for_its_ends(self):
        assert CacheLayout(4, self.WINDOWS).most_blocks(40, 8) == 10 + 6

    def test_most_blocks_is_a_bound_on_the_way(self):
        layout = CacheLayout(4, self.WINDOWS)
        for chunk in (1, 3, 8):
            tables, most, end = make_tables(40, self.WINDOWS), 0, 0
            while end < 40:
                start, end = end, min(40, end + chunk)
                grown = tables.grow("a", 40, end) if start else tables.admit("a", empty(tables), 40, end)
                assert grown
                most = max(most, tables.pool.num_used)
                if layout.fills_block(start, end):
                    tables.commit("a", [], end)
            assert most <= layout.most_blocks(40, chunk) < 20
