"""How many tokens are proposed: as many as are worth their rows."""

from dormouse_worker.engine.drafts.pace import (
    LONGEST_REST,
    PROBE_EVERY,
    Acceptance,
    Costs,
    EqualRows,
    RowCosts,
    RowsAlone,
)


def dearest_worthwhile(costs: Costs) -> float:
    """Return how likely a single token must be to be proposed."""
    return next(percent for percent in range(1, 101) if percent == 100 or costs.best_length(percent / 100, 1)) / 100


def test_the_likelier_a_token_is_taken_and_the_cheaper_a_row_the_longer_is_the_draft():
    lengths = [Acceptance(chance).choose_length(EqualRows(0.1), 64) for chance in (0.1, 0.3, 0.6, 0.9)]
    assert lengths == [0, 1, 3, 18]
    prices = (0.0, 0.1, 0.3, 0.6, 0.7)
    assert [Acceptance(0.8).choose_length(EqualRows(price), 6) for price in prices] == [6, 6, 3, 0, 0]


def test_where_no_draft_is_worth_its_row_nobody_is_asked_and_rows_are_tried_ever_more_rarely():
    costs = RowCosts(8)
    turns = [costs.turn(48) for _ in range(200)]
    tried = [turn for turn in turns if turn is not None]
    assert [place for place, turn in enumerate(turns, 1) if turn is not None] == [5, 14, 31, 64, 129, 194]
    assert {turn.best_length(chance, 8) for turn in tried for chance in (0.02, 0.98)} == {1}
    assert (tried[0].best_length(0.98, 0), tried[0].first) == (0, 0)
    assert repr(costs._rests) == f"{{6: Rest(6/{LONGEST_REST} passes)}}"


def test_once_rows_are_worth_it_all_are_asked_and_a_later_rest_begins_short():
    costs = RowCosts(8)
    while costs.turn(48) is None:
        pass
    for took_s, pays in ((1.0, True), (2.0, False)):
        for _ in range(40):
            costs.observe(48, 48, 1.0)
            costs.observe(48, 60, took_s)
        assert (costs.turn(48) is costs.of(48)) == pays
    assert [costs.turn(48) is None for _ in range(5)] == [True, True, True, False, True]
    assert costs.turn(1) is costs.of(1), "alone they are worth it"


def test_trials_take_no_more_than_their_share_of_the_tokens():
    for price, every in ((0.1, PROBE_EVERY), (0.6, 60)):
        acceptance = Acceptance(0.05)
        tried = [acceptance.choose_length(EqualRows(price), 8) for _ in range(3 * every)]
        assert [place for place, length in enumerate(tried, 1) if length] == [every, 2 * every, 3 * every]
        assert max(tried) == 1


def test_where_drafts_were_wrong_one_token_is_tried_now_and_then():
    acceptance, costs = Acceptance(0.5), EqualRows(0.1)
    while acceptance.choose_length(costs, 8):
        acceptance.note(8, 0)
    tried = [acceptance.choose_length(costs, 8) for _ in range(2 * PROBE_EVERY)]
    assert set(tried) == {0, 1}
    assert sum(tried) == 2
    for _ in range(30):
        acceptance.note(1, 1)
    assert acceptance.choose_length(costs, 8) == 8, "it pays again"


def test_a_row_costs_what_it_was_seen_to_cost_beside_so_many_sequences():
    costs = RowCosts(8)
    before = dearest_worthwhile(costs.of(64))
    assert dearest_worthwhile(costs.of(1)) < dearest_worthwhile(costs.of(8)) < before < 1.5
    costs.observe(64, 72, 3.0)
    assert dearest_worthwhile(costs.of(64)) == before, "nothing to compare it with"
    for _ in range(100):
        costs.observe(64, 64, 2.0)
        costs.observe(64, 72, 2.01)
    assert dearest_worthwhile(costs.of(64)) < 0.15
    for _ in range(100):
        costs.observe(64, 64, 2.0)
        costs.observe(64, 72, 2.5)
    assert dearest_worthwhile(costs.of(64)) == 1
    assert dearest_worthwhile(costs.of(8)) < 1, "nobody saw"
    assert repr(costs.of(64)) == "EqualRows(2.000)"


def test_alone_a_long_draft_may_be_worth_what_a_short_one_is_not():
    costs = RowCosts(8)
    for _ in range(100):
        costs.observe(1, 1, 1.0)
        costs.observe(1, 2, 1.5)
        costs.observe(1, 9, 1.6)
    assert costs.of(1).best_length(0.5, 1) == 0
    assert costs.of(1).best_length(0.7, 8) == 8


def test_alone_more_rows_never_cost_less():
    costs = RowsAlone([0.09 * count for count in range(9)])
    for _ in range(100):
        costs.observe(4, 0.05)
    assert costs.best_length(0.3, 1) == 1, "less than four"
    for _ in range(100):
        costs.observe(2, 0.9)
    assert costs.best_length(0.5, 8) == 1, "nor do four"


def test_passes_that_took_long_for_another_reason_do_not_make_rows_dear():
    costs = RowCosts(8)
    for number in range(200):
        pause = 2.0 if number % 4 == 3 else 0.0
        for num_seqs in (1, 2):
            costs.observe(num_seqs, num_seqs, 0.010 + pause)
            costs.observe(num_seqs, num_seqs + 8, 0.012 + pause)
    assert costs.of(1).best_length(0.4, 8) > 0
    assert costs.of(2).best_length(0.4, 8) > 0


def test_a_table_knows_more_rows_than_it_has_as_its_last():
    costs = RowsAlone([0.0, 0.09])
    for _ in range(100):
        costs.observe(9, 2.0)
    assert costs.best_length(0.98, 9) == 0
