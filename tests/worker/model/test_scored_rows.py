"""Which rows of drafts count."""

import numpy as np
import pytest

from dormouse_worker.engine.batch import NewSequence
from dormouse_worker.engine.testing import make_sampling
from dormouse_worker.model.batch_rows import BatchRows, RankSequence
from dormouse_worker.model.scored_rows import ScoredRows


def make(drafts):
    tokens, counts = np.zeros((len(drafts), 16), np.int64), np.zeros(len(drafts), np.int64)
    sequences = [
        RankSequence(NewSequence(name, [1, 2], [3], make_sampling()), row, tokens, counts, 1)
        for row, name in enumerate("abcdef"[: len(drafts)])
    ]
    for row, each in enumerate(drafts):
        tokens[row, 3 : 3 + len(each)] = each
    return ScoredRows(BatchRows(sequences), drafts)


@pytest.mark.parametrize(
    ("sampled", "kept"),
    [
        ([9, 5, 2, 8], [0, 1, 2, 3]),
        ([9, 5, 3, 8], [0, 1, 2]),
        ([9, 4, 2, 8], [0, 1]),
        ([8, 5, 2, 8], [0]),
    ],
)
def test_a_row_counts_if_all_drafts_before_it_are_what_was_sampled_there(sampled, kept):
    scored = make([(9, 5, 2)])
    assert scored.accept(np.array(sampled), np.ones(4, bool)).tolist() == kept


def test_each_sequence_has_its_own():
    scored = make([(), (7,), (7, 7), ()])
    sampled = np.array([7, 7, 7, 6, 7, 7, 7])
    kept = scored.accept(sampled, np.ones(7, bool))
    assert kept.tolist() == [0, 1, 2, 3, 6]
    assert scored.request_ids(kept) == ["a", "b", "b", "c", "d"]


def test_a_row_without_a_token_counts_as_the_first_only():
    scored = make([(7, 7), (7,)])
    are_fine = np.array([True, True, False, False, True])
    assert scored.accept(np.full(5, 7), are_fine).tolist() == [0, 1, 3, 4]


def test_a_row_sees_the_drafts_before_it_and_has_its_own_position():
    rows = make([(), (9, 5)]).rows
    assert [row.position for row in rows] == [1, 1, 2, 3]
    assert [list(row.output_token_ids) for row in rows] == [[3], [3], [3, 9], [3, 9, 5]]
    assert [list(row.prompt_token_ids) for row in rows] == [[1, 2]] * 4


def test_a_row_is_its_sequences_and_one_further_than_the_row_before():
    scored = make([(), (9, 5)])
    assert [row.request_id for row in scored.rows] == ["a", "b", "b", "b"]
    assert all(row.sampling == make_sampling() for row in scored.rows)
    assert scored.positions(np.array([4, 7])).tolist() == [4, 7, 8, 9]


def test_behind_a_draft_without_a_mask_nothing_is_allowed_and_a_free_sequence_stays_free():
    scored = make([(9, 5, 2), (7,)])
    bound, free = scored.rows[0]._sequence, scored.rows[4:]
    bound.masks = [np.array([255, 1], np.uint8), np.array([2, 0], np.uint8)]
    assert [row.allowed.tolist() for row in scored.rows[:4]] == [[255, 1], [2, 0], [0, 0], [0, 0]]
    assert [row.allowed for row in free] == [None, None]
    assert scored.drafts_by_id == {"a": (9, 5, 2), "b": (7,)}
