"""Every rank has one place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_worker.common.layout import Layout

sizes = st.integers(1, 8)


@given(tensor=sizes, pipeline=sizes)
def test_every_place_is_taken_once_and_one_rank_samples(tensor: int, pipeline: int) -> None:
    ranks = [Layout(tensor, pipeline, rank) for rank in range(tensor * pipeline)]
    assert len({(rank.stage, rank.tensor_rank) for rank in ranks}) == len(ranks)
    assert [rank.rank for rank in ranks if rank.samples] == [(pipeline - 1) * tensor]


@pytest.mark.parametrize(("tensor", "pipeline", "rank"), [(0, 1, 0), (1, 0, 0), (2, 2, 4), (2, 2, -1)])
def test_a_place_that_is_not_there_is_refused_with_the_numbers(tensor: int, pipeline: int, rank: int) -> None:
    with pytest.raises(ValueError, match=r"must be at least 1|a group of 4 has 0 to 3"):
        Layout(tensor, pipeline, rank)
