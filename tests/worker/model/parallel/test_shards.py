"""Which slice of which tensor a rank holds: pure, so by the hundred."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_worker.common.layout import Layout
from dormouse_worker.model.parallel.shards import Share, Vocabulary, even, heads, num_indices, packed


def ranks(tensor):
    return [Layout(tensor, 1, rank) for rank in range(tensor)]


@st.composite
def shares(draw):
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    dim = draw(st.integers(0, len(shape) - 1))
    cuts = sorted(draw(st.sets(st.integers(0, shape[dim]), min_size=2, max_size=5)))
    spans = tuple(zip(cuts[::2], cuts[1::2], strict=False))
    return Share("w", shape, dim, spans)


@given(shares(), st.data())
def test_the_runs_of_any_stretch_read_what_the_slices_hold(share, data):
    whole = np.arange(np.prod(share.shape)).reshape(share.shape)
    local = np.concatenate([whole.take(range(*span), axis=share.dim) for span in share.spans], axis=share.dim)
    start = data.draw(st.integers(0, local.size))
    end = data.draw(st.integers(start, local.size))
    read = [number for first, count in share.runs(start, end) for number in range(first, first + count)]
    assert read == local.reshape(-1)[start:end].tolist()


def test_a_whole_tensor_is_one_run():
    share = Share("w", (3, 4))
    assert list(share.runs(2, 9)) == [(2, 7)]


def test_rows_of_one_rank_are_one_run_and_columns_one_for_each_row():
    assert list(Share("w", (4, 8), 0, ((2, 4),)).runs(0, 16)) == [(16, 16)]
    assert list(Share("w", (3, 8), 1, ((4, 8),)).runs(0, 12)) == [(4, 4), (12, 4), (20, 4)]


@given(st.integers(1, 8), st.integers(1, 20), st.integers(1, 4))
def test_the_parts_of_all_ranks_are_the_whole_without_overlap(tensor, share, num_parts):
    size = tensor * share * num_parts
    for spans_of in (lambda layout: even(size, layout), lambda layout: packed(size, num_parts, layout)):
        taken = [i for layout in ranks(tensor) for start, stop in spans_of(layout) for i in range(start, stop)]
        assert sorted(taken) == list(range(size))


def test_a_fused_projection_gives_each_rank_a_part_of_each():
    assert [packed(12, 3, layout) for layout in ranks(2)] == [((0, 2), (4, 6), (8, 10)), ((2, 4), (6, 8), (10, 12))]


@pytest.mark.parametrize(
    ("num_heads", "tensor", "expected"),
    [
        (4, 2, [(0, 16), (16, 32)]),
        (2, 2, [(0, 8), (8, 16)]),
        (2, 4, [(0, 8), (0, 8), (8, 16), (8, 16)]),
        (1, 3, [(0, 8), (0, 8), (0, 8)]),
    ],
)
def test_heads_are_split_or_shared_by_neighbours(num_heads, tensor, expected):
    assert [heads(8 * num_heads, num_heads, layout) for layout in ranks(tensor)] == [(span,) for span in expected]


@given(st.integers(1, 8), st.integers(1, 300))
def test_every_token_of_a_vocabulary_is_with_one_rank(tensor, size):
    parts = [Vocabulary(size, layout) for layout in ranks(tensor)]
    assert [token for part in parts for token in range(part.start, part.stop)] == list(range(size))
    assert all(part.stop - part.start <= part.share for part in parts)


def test_an_odd_vocabulary_leaves_fewer_to_the_last_rank():
    assert [(part.start, part.stop) for part in (Vocabulary(261, layout) for layout in ranks(2))] == [
        (0, 131),
        (131, 261),
    ]


def test_spans_count_their_indices():
    assert num_indices(((0, 2), (5, 6))) == 3
