"""Requests that are bound by a grammar, in the engine's passes: they wait for it alone, and end with it."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from dormouse_worker.common.grammar import Grammar, GrammarRefused
from dormouse_worker.engine.grammars import Compilation, Prepared
from dormouse_worker.engine.testing import make_add
from dormouse_worker.engine.testing_executor import FakeExecutor
from dormouse_worker.front.testing import EOS
from tests.worker.engine.engine_kit import StagedEngine

YES = Grammar('start: "yes"', (EOS,))


class Slow:
    """A grammar whose compilation ends when the test says so."""

    def __init__(self):
        self.done = threading.Event()
        self.waits = []

    def is_done(self, timeout_s=0.0):
        if timeout_s:
            self.waits.append(timeout_s)
        return self.done.is_set()


@pytest.fixture
def staged():
    return StagedEngine(FakeExecutor)


def test_a_request_waits_for_its_grammar_and_others_go_before_it(staged):
    slow = staged.executor.preparations["start: slow"] = Slow()
    staged.add("a", grammar=Grammar("start: slow", ()))
    staged.add("b")
    assert [list(batch.request_ids) for batch in [staged.step() and staged.executor.batches[-1]]] == [["b"]]
    slow.done.set()
    assert staged.run().keys() == {"a", "b"}
    assert slow.waits == []


def test_with_nothing_else_to_do_the_engine_waits_a_little_for_the_grammar(staged):
    slow = staged.executor.preparations["start: slow"] = Slow()
    staged.add("a", grammar=Grammar("start: slow", ()))
    assert staged.step() is None
    assert slow.waits == [0.002]
    assert staged.engine.has_work
    assert [output.finish_reason for output in staged.engine.abort(["a"])] == ["abort"]
    assert not staged.engine.has_work


def test_an_answer_whose_grammar_leaves_no_token_ends_with_the_reason(staged):
    staged.executor.stuck["a"] = "nothing is left"
    staged.add("a", "b", grammar=YES)
    outputs = staged.step()
    assert outputs.refused == {"a": "nothing is left"}
    assert [output.request_id for output in outputs.outputs] == ["b"]
    assert staged.run().keys() == {"b"}


def test_the_end_of_a_grammar_is_the_end_whatever_min_tokens_says(staged):
    staged.add("a", max_tokens=9)
    first = staged.run()["a"][0]
    staged.add("b", length=3, max_tokens=9)
    free = StagedEngine(FakeExecutor)
    free.add("a", max_tokens=9, min_tokens=5, grammar=Grammar("start: any", (first,)))
    assert free.run()["a"] == [first]


def test_who_binds_nothing_refuses_the_request_and_the_engine_goes_on(ready):
    ready.fail_next("prepare_grammar", GrammarRefused("nothing is bound here"))
    ready.controller.handle(make_add("a", grammar=YES))
    assert ready.sent[-1].refused == {"a": "nothing is bound here"}
    assert not ready.controller.has_work
    ready.controller.handle(make_add("a", grammar=YES))
    assert ready.controller.has_work


def test_where_nobody_compiles_before_the_sequence_comes_nothing_is_waited_for():
    assert Prepared().is_done(timeout_s=1.0)
    assert not Compilation(Future()).is_done(timeout_s=0.001)
