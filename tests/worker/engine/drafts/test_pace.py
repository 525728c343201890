"""How many tokens are proposed: as many as are worth their rows."""

import pytest

from dormouse_worker.engine.drafts.pace import PROBE_EVERY, PROBE_PRICE_EVERY, Acceptance, RowPrice


def test_the_likelier_a_token_is_taken_and_the_cheaper_a_row_the_longer_is_the_draft():
    lengths = [Acceptance(chance).choose_length(0.1, 64) for chance in (0.1, 0.3, 0.6, 0.9)]
    assert lengths == [0, 1, 3, 18]
    assert [Acceptance(0.8).choose_length(price, 6) for price in (0.0, 0.1, 0.3, 0.6, 0.7)] == [6, 6, 3, 0, 0]


def test_where_a_row_costs_a_token_one_is_tried_rarely_to_learn_whether_it_still_does():
    acceptance = Acceptance(0.98)
    tried = [acceptance.choose_length(0.7, 8) for _ in range(2 * PROBE_PRICE_EVERY)]
    assert [place for place, length in enumerate(tried, 1) if length] == [PROBE_PRICE_EVERY, 2 * PROBE_PRICE_EVERY]
    assert max(tried) == 1


def test_where_drafts_were_wrong_one_token_is_tried_now_and_then():
    acceptance = Acceptance(0.5)
    while acceptance.choose_length(0.1, 8):
        acceptance.note(8, 0)
    tried = [acceptance.choose_length(0.1, 8) for _ in range(2 * PROBE_EVERY)]
    assert set(tried) == {0, 1}
    assert sum(tried) == 2
    for _ in range(30):
        acceptance.note(1, 1)
    assert acceptance.choose_length(0.1, 8) == 8, "it pays again"


def test_a_row_costs_what_it_was_seen_to_cost_beside_so_many_sequences():
    price = RowPrice()
    before = price.of(1)
    assert 0 < before < price.of(8) < price.of(64) < 1
    price.observe(1, 5, 3.0)
    assert price.of(1) == before, "nothing to compare it with"
    for _ in range(100):
        price.observe(1, 1, 1.0)
        price.observe(1, 5, 1.2)
        price.observe(64, 64, 2.0)
        price.observe(64, 72, 2.5)
    assert price.of(1) == pytest.approx(0.05, rel=0.25), "medians swing by a step"
    assert price.of(64) == pytest.approx(2.0, rel=0.25)
    assert price.of(8) < 1, "nobody saw"


def test_passes_that_took_long_for_another_reason_do_not_make_rows_dear():
    price = RowPrice()
    for number in range(200):
        pause = 2.0 if number % 4 == 3 else 0.0
        price.observe(1, 1, 0.010 + pause)
        price.observe(1, 9, 0.015 + pause)
    assert price.of(1) < 0.2
