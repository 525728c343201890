"""An adapter is read between passes: others wait for a share of their time at most; commands see all of it or none."""

from __future__ import annotations

import math

import pytest

from dormouse_worker.common.commands import (
    AbortAll,
    AddLora,
    CheckHealth,
    ListLoras,
    PinLora,
    RemoveLora,
    ResetPrefixCache,
    Sleep,
)
from dormouse_worker.common.errors import AdapterInvalid
from dormouse_worker.common.ipc import CommandRequest, CommandResult, StepOutputs
from dormouse_worker.engine.adapter_loads import IDLE_PIECE_S, SHARE, AdapterLoads
from dormouse_worker.engine.testing import ManualClock, make_add

ADD = CommandRequest(3, AddLora("/a/one"))
DONE = CommandResult(3, value="one")


class Reader:
    """Reads for as long as it may, and longer by `excess_s`; is done after so many pieces."""

    def __init__(self, num_pieces=10**6, excess_s=0.0):
        self.clock, self.told, self.pieces = ManualClock(), [], []
        self.num_pieces, self.excess_s = num_pieces, excess_s
        self.loads = AdapterLoads(self.advance, tell=self.told.append, clock=self.clock)
        self.loads.begin(ADD)

    def advance(self, request, seconds):
        assert request is ADD
        self.pieces.append(seconds)
        self.clock.now_s += (0 if seconds == math.inf else seconds) + self.excess_s
        return DONE if seconds == math.inf or len(self.pieces) == self.num_pieces else None


def test_beside_passes_it_has_a_share_of_their_time_whatever_a_piece_takes_too_much():
    reader = Reader(excess_s=0.005)
    for _ in range(1000):
        reader.clock.now_s += 0.02
        reader.loads.turn(is_beside_passes=True)
    spent = reader.clock.now_s - 1000 * 0.02
    assert spent == pytest.approx(SHARE * 1000 * 0.02, rel=0.05)
    assert max(reader.pieces) <= SHARE * 0.02 + 1e-9


def test_without_passes_it_goes_on_in_pieces_between_which_messages_come():
    reader = Reader(num_pieces=3)
    while reader.loads.is_under_way:
        reader.loads.turn(is_beside_passes=False)
    assert reader.pieces == [IDLE_PIECE_S] * 3
    assert reader.told == [DONE]
    reader.loads.turn(is_beside_passes=False)
    assert len(reader.pieces) == 3


@pytest.mark.parametrize("command", [AbortAll(), CheckHealth(), ListLoras()], ids=lambda each: each.method)
def test_what_does_not_mind_does_not_wait(command):
    reader = Reader()
    reader.loads.make_way(command)
    assert reader.pieces == []


@pytest.mark.parametrize("command", [Sleep(), RemoveLora("x"), PinLora("x"), ResetPrefixCache()], ids=str)
def test_before_others_it_is_finished(command):
    reader = Reader()
    assert "one" in repr(reader.loads)
    reader.loads.make_way(command)
    reader.loads.make_way(command)
    assert (reader.pieces, reader.told) == ([math.inf], [DONE])


class Loading:
    """A controller with a request that runs while an adapter is read."""

    def __init__(self, ready):
        self.rank = ready
        ready.executor.num_lora_pieces = 4
        ready.controller.handle(make_add("r", max_tokens=8))
        ready.controller.handle(ADD)

    def step(self):
        self.rank.clock.now_s += 1
        self.rank.controller.step()

    def results(self):
        return [each for each in self.rank.sent if isinstance(each, CommandResult) and each.command_id == 3]


@pytest.fixture
def loading(ready):
    return Loading(ready)


def test_tokens_come_while_an_adapter_is_read_and_its_answer_when_it_is_there(loading):
    loading.step()
    start = len(loading.rank.sent)
    while not loading.results():
        loading.step()
    tokens = [each for each in loading.rank.sent[start:] if isinstance(each, StepOutputs)]
    assert len(tokens) == 3
    assert loading.rank.executor.lora_pieces[0] == pytest.approx(2 * SHARE)  # of a second of its own, and one beside
    assert '"digest":"one"' in loading.results()[0].value
    loading.rank.controller.handle(ADD)
    while loading.rank.controller.has_work:
        loading.step()
    assert len(loading.results()) == 2


def test_a_removal_meets_the_whole_adapter(loading):
    loading.step()
    assert loading.rank.command(RemoveLora("one")) == ("", "")
    assert loading.results()[0].error_reason == ""
    assert not loading.rank.executor.loras


def test_what_cannot_be_read_is_told_and_others_go_on(loading):
    loading.rank.fail_next("add_lora /a/one", AdapterInvalid("/a/one: no"))
    while loading.rank.controller.has_work:
        loading.step()
    assert [each.error_message for each in loading.results()] == ["/a/one: no"]
    (last,) = [each for each in loading.rank.sent if isinstance(each, StepOutputs)][-1].outputs
    assert last.finish_reason
