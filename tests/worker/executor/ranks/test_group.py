"""What a leader makes of the answers that come: each belongs to one order."""

from __future__ import annotations

import socket

import msgspec
import pytest

from dormouse_worker.common.errors import RankHung, RankLost
from dormouse_worker.executor.ranks.connection import RankConnection
from dormouse_worker.executor.ranks.group import RankGroup
from dormouse_worker.executor.ranks.leader_connection import LeaderLine
from dormouse_worker.executor.ranks.messages import Answer, encode_value


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
        self.now_s = 0.0
        ranks = {0: RankConnection(here, self._clock, "rank 0")}
        self.group = RankGroup(ranks, NoChildren(), self._clock, rank_timeout_s=9)

    def _clock(self):
        return self.now_s

    def say(self, call_id, value):
        self.line.say(Answer(call_id, encode_value(value)))

    def hang_up(self):
        self._there.close()

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


def test_who_was_silent_for_too_long_hung_even_if_somebody_has_killed_it_meanwhile(rank):
    rank.now_s = 9.5
    rank.hang_up()
    with pytest.raises(RankHung, match="rank 0: no sign of life for 9 s"):
        rank.group.check_alive()


def test_who_spoke_a_moment_ago_is_lost_however_late_that_is_read(rank):
    rank.now_s = 9.5
    rank.say(1, "not yet the end")
    rank.hang_up()
    with pytest.raises(RankLost, match="rank 0: its process ended"):
        rank.group.check_alive()


def test_who_needs_no_other_rank_is_waited_for_though_one_has_failed():
    """A slow disk is no reason to break a group: the second rank answers long after the grace that an order has."""
    (here, there), (other_here, other_there) = socket.socketpair(), socket.socketpair()
    first, second = LeaderLine(there), LeaderLine(other_there)
    now_s = [0]

    def clock():
        """Two seconds later with every look; there is always something to read."""
        now_s[0] += 2
        first.say(Answer(7, encode_value("nobody asked")))
        if now_s[0] == 40:
            second.say(Answer(1, encode_value("late")))
        return now_s[0]

    ranks = {
        rank: RankConnection(each, lambda: now_s[0], f"rank {rank}") for rank, each in enumerate((here, other_here))
    }
    group = RankGroup(ranks, NoChildren(), clock, rank_timeout_s=90)
    first.say(Answer(1, error="AdapterNotFound", message="gone"))
    replies = group.collect_each(group.send_each("add_lora", "/a", "", ranks=(0, 1)), (0, 1), 60.0)
    assert (replies.done, replies.silent, replies.failed[0].message) == ((1,), (), "gone")
    group.close()
    there.close()
    other_there.close()
