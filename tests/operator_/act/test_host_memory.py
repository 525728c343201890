"""The book of host memory: who is told to sleep deeper, once, and who is forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dormouse_operator.act.host_memory import HostMemoryBook
from dormouse_operator.decide.pressure import Budgets
from dormouse_operator.model import (
    Key,
)
from dormouse_operator.model.units import GIB
from dormouse_operator.testing.nouns import NOW, a_deployment, a_pod, a_situation, but
from tests.operator_.host_memory_kit import LEVEL1, sleeping


def book_of(gib, marked):
    return HostMemoryBook(Budgets(max_sleeping_bytes=gib * GIB), clock=lambda: NOW, mark=marked.append)


def test_the_book_tells_those_whom_it_concerns_once_and_forgets_who_is_gone():
    marked = []
    book = book_of(3, marked)
    first = sleeping(2)
    book.saw(first)
    assert (marked, book.pressure_on(first.deployment.key)) == ([], None)
    other = but(sleeping(2), deployment=a_deployment(key=Key("team", "other")))
    book.saw(replace(other, ladder=replace(LEVEL1, idle_since=NOW)))
    book.saw(replace(other, ladder=replace(LEVEL1, idle_since=NOW)))
    assert marked == [first.deployment.key]
    assert "4.00 GiB on node node-0" in book.pressure_on(first.deployment.key).words
    assert repr(book) == "HostMemoryBook(2 hold something, 1 have to go deeper)"
    book.forget(other.deployment.key)
    book.forget(other.deployment.key)
    assert book.pressure_on(first.deployment.key) is None
    book.saw(a_situation(None))
    assert repr(book) == "HostMemoryBook(0 hold something, 0 have to go deeper)"


def test_a_pod_that_is_on_another_node_now_leaves_its_old_one():
    marked = []
    book = book_of(3, marked)
    book.saw(sleeping(2))
    moved = replace(sleeping(2), pods=(a_pod(0, node="node-9"),))
    book.saw(moved)
    book.saw(but(sleeping(2), deployment=a_deployment(key=Key("team", "other"))))
    assert marked == []
    book.rejected(Key("team", "other"), "uid")
    assert repr(book) == "HostMemoryBook(1 hold something, 0 have to go deeper)"


@pytest.mark.parametrize(("gib", "level"), [(2, 2), (1, 3)])
def test_the_book_marks_again_who_has_to_go_deeper_still(gib, level):
    marked, key = [], Key("team", "tiny")
    book = HostMemoryBook(Budgets(max_node_percent=100), clock=lambda: NOW, mark=marked.append, nodes=Known(gib))
    book.saw(sleeping(2))
    assert book.pressure_on(key).level == level
    book.saw(sleeping(2))
    assert marked == [key]


class Known:
    """Nodes of a size."""

    def __init__(self, gib):
        self.allocatable = {"node-0": gib * GIB - 1 if gib == 1 else gib * GIB}

    async def look(self, names):
        """Know all."""
