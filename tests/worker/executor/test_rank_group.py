"""What a leader makes of the answers that come: each belongs to one order."""

from __future__ import annotations

import socket

import msgspec
import pytest

from dormouse_worker.executor.rank_connection import RankConnection
from dormouse_worker.executor.rank_group import RankGroup
from dormouse_worker.executor.rank_line import LeaderLine
from dormouse_worker.executor.rank_messages import Answer, encode_value


class NoChildren:
    """A pod without ranks of its own."""

    def check(self):
        """See `Children`."""


class TalkativeRank:
    """A rank at the other end, which may say things before it is asked."""

    def __init__(self):
        here, there = socket.socketpair()
        self.line = LeaderLine(there)
        self._there = there
        ranks = {0: RankConnection(here, lambda: 0.0, "rank 0")}
        self.group = RankGroup(ranks, NoChildren(), lambda: 0.0, rank_timeout_s=9)

    def say(self, call_id, value):
        self.line.say(Answer(call_id, encode_value(value)))

    def close(self):
        self.group.close()
        self._there.close()


@pytest.fixture
def rank():
    rank = TalkativeRank()
    yield rank
    rank.close()


def value_of(replies):
    return msgspec.msgpack.decode(replies.answers[0].value)


def test_each_order_gets_its_own_answer_whatever_else_a_rank_says(rank):
    rank.say(7, "nobody asked")
    rank.say(1, "the first")
    assert value_of(rank.group.call("one")) == "the first"
    rank.say(1, "the first once more, late")
    rank.say(2, "the second")
    assert value_of(rank.group.call("two")) == "the second"
