"""Labels as a tree of tokens: what is asked, and that the answers come to each label's own probability."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_worker.front.decisions.labels import Node, decided, nodes_of


def test_labels_of_one_token_are_one_question():
    assert nodes_of([(5,), (3,)]) == [Node((), (5, 3))]


def test_labels_that_begin_alike_are_asked_about_behind_their_beginning():
    assert nodes_of([(1, 2), (1, 3), (4,)]) == [Node((), (1, 4)), Node((1,), (2, 3))]


@pytest.mark.parametrize("labels", [[(1,), (1,)], [(1,), (1, 2)], [(), (1,)]])
def test_labels_that_tokens_do_not_tell_apart_are_not_asked_about(labels):
    assert nodes_of(labels) == []


def test_a_label_is_as_likely_as_all_its_tokens_in_a_row():
    told = {(): {1: math.log(0.5), 4: math.log(0.1)}, (1,): {2: math.log(0.2), 3: math.log(0.6)}}
    found = decided([(1, 2), (1, 3), (4,)], told)
    assert found.probabilities == pytest.approx([0.1 / 0.5, 0.3 / 0.5, 0.1 / 0.5])
    assert found.label_mass == pytest.approx(0.5)


def test_labels_that_are_not_likely_at_all_decide_nothing():
    assert decided([(1,), (2,)], {(): {1: -math.inf, 2: -math.inf}}) is None
    found = decided([(1,), (2,)], {(): {1: -2000.0, 2: -2000.0 - math.log(3)}})
    assert found.probabilities == pytest.approx([0.75, 0.25])
    assert found.label_mass == 0


paths = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple)


@given(st.lists(paths, min_size=2, max_size=8, unique=True))
def test_every_label_has_a_way_through_what_is_asked_or_nothing_is(labels):
    nodes = nodes_of(labels)
    is_prefix_free = not any(a != b and b[: len(a)] == a for a in labels for b in labels)
    assert bool(nodes) is is_prefix_free
    if nodes:
        told = {node.path: dict.fromkeys(node.token_ids, math.log(1 / 4)) for node in nodes}
        found = decided(labels, told)
        assert sum(found.probabilities) == pytest.approx(1)
        assert found.label_mass == pytest.approx(sum(4.0 ** -len(label) for label in labels))
        assert len(nodes) == len({label[:depth] for label in labels for depth in range(len(label))})
