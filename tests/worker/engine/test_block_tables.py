"""Block tables: growing, sharing prefixes, windows."""

from random import Random

import pytest

from dormouse_worker.engine.block_pool import BlockPool
from dormouse_worker.engine.block_tables import ABSENT, BlockTables, CacheLayout, Prefix
from dormouse_worker.engine.prefix import hash_block, root_hash
from tests.worker.engine.scheduler_kit import CountingPool

EMPTY = Prefix(0, ([],))


def make_tables(num_blocks=10, windows=(None,), block_size=4):
    return BlockTables(BlockPool(num_blocks), CacheLayout(block_size, windows))


def hashes(count, start=0):
    chain = [root_hash("")]
    for n in range(count):
        chain.append(hash_block(chain[-1], [start + n]))
    return chain[1:]


def is_whole(tables, chain, count):
    """Say the slow way whether every group knows what a token behind so many blocks sees."""
    needed = [(group, index) for group in range(len(tables.layout.windows)) for index in range(count)]
    return all(
        tables.pool.find((group, chain[index])) is not None
        for group, index in needed
        if index >= tables.layout.first_needed(group, count * 4)
    )


def empty(tables):
    return Prefix(0, tuple([] for _ in tables.layout.windows))


def run(tables, name, num_tokens, chain=()):
    """Let a sequence without a known prefix compute so many tokens."""
    assert tables.admit(name, empty(tables), num_tokens, num_tokens)
    tables.commit(name, list(chain), num_tokens)


def test_a_layout_has_blocks_of_at_least_one_token():
    assert CacheLayout(1, (6,)).first_needed(0, 0) == 0
    with pytest.raises(AssertionError):
        CacheLayout(0)


@pytest.mark.parametrize(
    ("start", "end", "fills"), [(0, 3, False), (0, 4, True), (3, 5, True), (4, 5, False), (4, 7, False), (0, 9, True)]
)
def test_a_block_is_full_with_its_last_token(start, end, fills):
    assert CacheLayout(4).fills_block(start, end) == fills


def test_a_sequence_holds_blocks_for_its_tokens_and_gives_them_back():
    tables = make_tables()
    assert tables.admit("a", EMPTY, 5, 5)
    assert tables.table("a") == ([0, 1],)
    assert tables.usage == 0.2
    assert repr(tables) == "BlockTables(1 sequences, BlockPool(total=10, free=8, cached=0, used=2))"
    tables.free("a")
    tables.free("a")
    assert tables.pool.num_used == 0
    assert not tables._num_named


def test_without_room_nothing_changes():
    tables = make_tables(2)
    assert not tables.admit("a", EMPTY, 9, 9)
    assert tables.admit("a", EMPTY, 8, 8)
    assert not tables.grow("a", 9, 9)
    assert tables.table("a") == ([0, 1],)
    tables.check_integrity()


def test_growing_is_idempotent_and_never_shrinks():
    tables = make_tables()
    tables.admit("a", EMPTY, 1, 1)
    for num_tokens in (5, 5, 3):
        assert tables.grow("a", num_tokens, num_tokens)
    assert tables.table("a") == ([0, 1],)


def test_a_known_prefix_is_shared_while_it_runs_and_after():
    tables, chain = make_tables(), hashes(2)
    run(tables, "a", 10, chain)
    prefix = tables.find_prefix(chain, 11)
    assert prefix == Prefix(8, ([0, 1],))
    assert tables.admit("b", prefix, 12, 12)
    assert tables.table("b") == ([0, 1, 3],)
    tables.check_integrity()
    tables.free("a")
    tables.free("b")
    assert tables.pool.num_cached == 2
    assert tables.find_prefix(chain, 11) == prefix
    tables.check_integrity()


def test_the_last_token_is_never_taken_from_the_cache():
    tables, chain = make_tables(), hashes(2)
    run(tables, "a", 8, chain)
    assert tables.find_prefix(chain, 7).num_tokens == 4
    assert tables.find_prefix(chain[:1], 99).num_tokens == 4


def test_a_gap_ends_the_prefix():
    tables, chain = make_tables(), hashes(3)
    run(tables, "a", 4, chain[:1])
    assert tables.find_prefix([chain[0], b"unknown", chain[2]], 12).num_tokens == 4


def test_room_is_counted_without_the_cached_blocks_that_are_about_to_be_held():
    tables, chain = make_tables(3), hashes(2)
    run(tables, "a", 8, chain)
    tables.free("a")
    prefix = tables.find_prefix(chain, 99)
    assert not tables.admit("b", prefix, 16, 16)
    tables.check_integrity()
    assert tables.admit("b", prefix, 12, 12)
    assert tables.table("b") == ([0, 1, 2],)


def test_output_gets_a_name_when_its_block_is_full():
    tables, chain = make_tables(), hashes(2)
    run(tables, "a", 5, chain[:1])
    assert tables.grow("a", 8, 8)
    tables.commit("a", chain, 8)
    assert tables.find_prefix(chain, 99).num_tokens == 8


def test_only_what_is_computed_gets_its_name():
    tables, chain = make_tables(), hashes(3)
    run(tables, "a", 7, chain)
    assert tables.find_prefix(chain, 99).num_tokens == 4
    assert tables.grow("a", 12, 12)
    tables.commit("a", chain, 12)
    assert tables.find_prefix(chain, 99).num_tokens == 12


def test_what_was_forgotten_stays_forgotten_while_its_sequence_goes_on():
    tables, chain = make_tables(), hashes(2)
    run(tables, "a", 5, chain[:1])
    tables.pool.forget_prefixes()
    assert tables.grow("a", 8, 8)
    tables.commit("a", chain, 8)
    assert tables.find_prefix(chain, 99) == EMPTY


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


class TestRestore:
    """A sequence comes back from host memory."""

    def test_it_gets_the_same_shape_and_grows_at_once(self):
        tables = make_tables(windows=(None, 6))
        table = tables.restore("a", [[True] * 3, [False, False, True]], 13, 13)
        assert [len(blocks) for blocks in table] == [4, 4]
        assert [block == ABSENT for block in table[1]] == [True, True, False, False]
        assert tables.pool.num_used == 6
        tables.check_integrity()

    def test_without_room_nothing_changes(self):
        tables = make_tables(2)
        assert tables.restore("a", [[True, True]], 9, 9) is None
        tables.check_integrity()
        assert tables.restore("a", [[True, True]], 8, 8) == ([0, 1],)

    def test_its_blocks_get_their_names_with_the_next_commit(self):
        tables, chain = make_tables(), hashes(2)
        tables.restore("a", [[True, True]], 8, 8)
        tables.commit("a", chain, 8)
        assert tables.find_prefix(chain, 99).num_tokens == 8


class TestShortage:
    """Whoever found no room is tried again only when that can have changed."""

    def test_growing_and_sharing_by_others_ease_nothing(self):
        tables, chain = make_tables(4), hashes(3)
        run(tables, "a", 8, chain[:2])
        shortage = tables.shortage(tables.find_prefix([b"unknown"], 99))
        assert tables.admit("b", tables.find_prefix(chain, 99), 9, 9)
        assert tables.grow("a", 9, 9)
        assert not tables.has_eased(shortage)

    def test_a_block_that_comes_back_eases_it(self):
        tables = make_tables()
        run(tables, "a", 5)
        shortage = tables.shortage()
        tables.free("a")
        assert tables.has_eased(shortage)

    def test_forgotten_prefixes_ease_it(self):
        tables = make_tables()
        shortage = tables.shortage()
        tables.pool.forget_prefixes()
        assert tables.has_eased(shortage)

    def test_the_first_unknown_block_eases_it_once_it_is_known(self):
        tables, chain = make_tables(), hashes(3)
        run(tables, "a", 13, chain[:1])
        shortage = tables.shortage(tables.find_prefix(chain, 99))
        assert not tables.has_eased(shortage)
        tables.commit("a", chain[:2], 13)
        assert tables.has_eased(shortage)

    def test_a_prefix_known_as_far_as_it_may_be_has_no_unknown_block(self):
        tables, chain = make_tables(), hashes(3)
        run(tables, "a", 9, chain[:2])
        assert tables.find_prefix(chain, 9).next_hash is None
        assert tables.find_prefix(chain[:2], 99).next_hash is None
        assert tables.find_prefix(chain, 12).next_hash == chain[2]

    def test_with_a_window_it_may_always_have_eased(self):
        tables = make_tables(windows=(None, 6))
        assert tables.has_eased(tables.shortage())
