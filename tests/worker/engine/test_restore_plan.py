"""Which stored blocks lengthen a beginning, and when reading is worth it."""

import pytest

from dormouse_worker.engine.block_tables import CacheLayout
from dormouse_worker.engine.restore_plan import TRY_EVERY, Rates, plan_restore

HASHES = [bytes([number]) for number in range(6)]


def plan(windows, in_pool, in_store, max_tokens=24):
    """Return what is read as (group, index)."""
    layout = CacheLayout(4, windows)
    keys = plan_restore(
        layout,
        HASHES,
        max_tokens,
        in_pool=lambda key: (key[0], HASHES.index(key[1])) in in_pool,
        in_store=lambda key: (key[0], HASHES.index(key[1])) in in_store,
    )
    return [(group, HASHES.index(name)) for group, name in keys]


def group(number, *indices):
    return {(number, index) for index in indices}


@pytest.mark.parametrize(
    ("in_pool", "in_store", "max_tokens", "expected"),
    [
        ((), (), 24, []),
        ((), (0, 1, 2), 24, [0, 1, 2]),
        ((0, 1), (0, 1, 2, 3), 24, [2, 3]),
        ((1,), (0, 2, 4), 24, [0, 2]),
        ((), (1, 2), 24, []),
        ((), range(6), 11, [0, 1]),
        ((0, 1), (), 24, []),
    ],
)
def test_a_chain_goes_as_far_as_pool_and_store_know_it(in_pool, in_store, max_tokens, expected):
    found = plan((None,), group(0, *in_pool), group(0, *in_store), max_tokens)
    assert found == [(0, index) for index in expected]


def test_a_window_needs_only_what_the_next_token_sees():
    everything = group(0, *range(6)) | group(1, *range(6))
    assert plan((None, 6), set(), everything) == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 4), (0, 5), (1, 5)]


def test_a_gap_in_a_window_ends_the_beginning_before_it():
    stored = group(0, *range(6)) | group(1, 0, 1, 2, 3, 5)
    assert plan((None, 6), set(), stored) == [(0, 0), (0, 1), (0, 2), (1, 2), (0, 3), (1, 3)]


def test_windows_alone_look_back_until_one_is_whole():
    assert plan((5,), set(), group(0, 0, 1, 3)) == [(0, 3)]
    assert plan((5,), group(0, 1), group(0, 0)) == []


def test_a_window_of_which_nothing_is_stored_is_looked_at_once():
    """A step waits for the plan: a long prompt must not be gone through again for each of its blocks."""
    asked = []
    hashes = [number.to_bytes(4, "big") for number in range(500)]

    def is_whole(key):
        asked.append(key)
        return key[0] == 0

    assert not plan_restore(CacheLayout(4, (None, 40)), hashes, 2000, in_pool=lambda _: False, in_store=is_whole)
    assert len(asked) <= 2 * len(hashes)


def test_what_is_not_known_is_tried_and_then_the_cheaper_way_is_taken():
    rates = Rates()
    assert rates.is_worth_reading(1, 1 << 30)
    rates.note_pass(1000, 1.0)
    assert rates.is_worth_reading(1, 1 << 30)
    rates.note_read(1000, 1.0)
    assert (rates.recompute_s(500), rates.read_s(250)) == (0.5, 0.25)
    assert rates.is_worth_reading(100, 99)
    assert not rates.is_worth_reading(100, 100)


def test_rates_follow_what_is_measured_and_ignore_what_took_no_time():
    rates = Rates()
    rates.note_read(100, 0.0)
    assert rates.bytes_per_s == 0
    rates.note_read(100, 1.0)
    rates.note_read(500, 1.0)
    assert rates.bytes_per_s == 200


def test_a_store_that_was_slow_once_is_tried_again():
    rates = Rates()
    rates.note_pass(1000, 1.0)
    rates.note_read(1, 1.0)
    tried = [rates.is_worth_reading(1000, 1000) for _ in range(2 * TRY_EVERY)]
    assert [number for number, is_tried in enumerate(tried, 1) if is_tried] == [TRY_EVERY, 2 * TRY_EVERY]
