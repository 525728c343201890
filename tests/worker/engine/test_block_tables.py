"""Block tables: growing, sharing prefixes, coming back, finding no room."""

import pytest

from dormouse_worker.engine.block_tables import ABSENT, CacheLayout, Prefix
from tests.worker.engine.tables_kit import EMPTY, hashes, make_tables, run


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


def test_a_sequence_grows_for_all_its_tokens_even_where_the_pass_ends_before():
    tables = make_tables()
    tables.admit("a", EMPTY, 4, 4)
    assert tables.grow("a", 9, 4)
    assert tables.table("a") == ([0, 1, 2],)


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
