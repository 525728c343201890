"""Who of a group gives a silent rank up, and when."""

from __future__ import annotations

from dormouse_worker.engine.loop import HEARTBEAT_S
from dormouse_worker.executor.rank_group import LOOK_PERIOD_S
from dormouse_worker.executor.rank_line import BEAT_PERIOD_S
from dormouse_worker.group import GroupPlace


def test_the_leader_can_name_the_rank_that_hangs_before_anybody_else_ends_it():
    """A rank shows life to its leader and to its own pod apart, the two up to a period from each other."""
    place = GroupPlace(rank_timeout_s=5.0)
    leader_at_the_latest_s = place.rank_timeout_s + max(HEARTBEAT_S, LOOK_PERIOD_S)
    others_at_the_earliest_s = place.patience_s - BEAT_PERIOD_S
    assert others_at_the_earliest_s >= leader_at_the_latest_s
