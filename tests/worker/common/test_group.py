"""Who of a group gives a silent rank up, and when."""

from __future__ import annotations

from dormouse_worker.common.group import GroupPlace
from dormouse_worker.engine.loop import HEARTBEAT_S
from dormouse_worker.executor.ranks.group import LOOK_PERIOD_S
from dormouse_worker.executor.ranks.leader_connection import BEAT_PERIOD_S


def test_whoever_ends_a_rank_that_hangs_the_leader_has_missed_it_for_long_enough():
    """A rank shows life to its leader and to its own pod apart, and the leader hears of it at its next look."""
    place = GroupPlace(rank_timeout_s=5.0)
    heard_at_the_latest_s = max(HEARTBEAT_S, LOOK_PERIOD_S)  # after the rank hung
    ended_at_the_earliest_s = place.patience_s - BEAT_PERIOD_S
    assert ended_at_the_earliest_s - heard_at_the_latest_s >= place.rank_timeout_s
