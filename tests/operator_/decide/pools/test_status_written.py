"""The whole status of a pool, as it is written."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from dormouse_operator.decide.pools.plan import PoolPlan, plan_pool
from dormouse_operator.decide.pools.status import build_status
from dormouse_operator.model import Condition, Key, RecordedCondition
from dormouse_operator.model.pool_device import PoolDevice
from dormouse_operator.model.pool_observed import Member, PoolObserved, SlotClaim
from dormouse_operator.model.pools import Idleness, Pool
from dormouse_operator.testing.nouns import NOW, a_pod
from tests.operator_.decide.pools.nouns import A, B, ago, demand, demands, free, held

POOL = Pool(key=Key("team", "s"), uid="u", generation=3, device=PoolDevice("gpu.example.com"), num_slots=2)
READY = Condition("Ready", "True", "Served", "2 of 2 slots")
CLAIM = SlotClaim(uid="c", is_ours=True, devices=("d/n1/gpu-0",))


def observed(pool=POOL):
    here = Member(key=A.key, pods=(a_pod(pool="s", slot="s-0", node="n1"),))
    leaving = Member(key=B.key, names_pool=False)
    return PoolObserved(pool=pool, now=NOW, members={A.key: here, B.key: leaving}, claims={"s-0": CLAIM})


def planned(**fields) -> PoolPlan:
    """Return a plan with one held slot and two free ones, for which two members wait."""
    slots = (held(A, name="s-0", for_s=60), free("s-1"), free("s-2"))
    asked = demands(demand("b", waited_s=5), demand("c", wanted=2, waited_s=9), demand("d"))
    return replace(plan_pool(observed()), slots=slots, demands=MappingProxyType(asked), **fields)


def test_it_tells_slots_members_who_waits_and_what_holds():
    idleness = Idleness(since=ago(30), released_since=ago(20))
    assert build_status(observed(), planned(idleness=idleness), {"Ready": READY}) == {
        "observedGeneration": 3,
        "members": 1,
        "heldSlots": 1,
        "waitingMembers": 2,
        "deviceBytes": None,
        "idleSince": "2025-12-31T23:59:30.000000Z",
        "releasedSince": "2025-12-31T23:59:40.000000Z",
        "slots": [
            {
                "name": "s-0",
                "phase": "Held",
                "since": "2025-12-31T23:59:00.000000Z",
                "epoch": 0,
                "node": "n1",
                "devices": ["d/n1/gpu-0"],
                "holders": [{"replica": "a[0]", "since": "2025-12-31T23:59:00.000000Z"}],
            },
            {"name": "s-1", "phase": "Free", "since": "2025-12-31T23:58:20.000000Z", "epoch": 0},
            {"name": "s-2", "phase": "Free", "since": "2025-12-31T23:58:20.000000Z", "epoch": 0},
        ],
        "waiting": [
            {"name": "c", "since": "2025-12-31T23:59:51.000000Z", "wanted": 2},
            {"name": "b", "since": "2025-12-31T23:59:55.000000Z", "wanted": 1},
        ],
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Served",
                "message": "2 of 2 slots",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
                "observedGeneration": 3,
            }
        ],
    }


def test_where_somebody_is_awake_there_is_no_time_of_silence():
    status = build_status(observed(), planned(idleness=Idleness()), {})
    assert (status["idleSince"], status["releasedSince"], status["conditions"]) == (None, None, [])


@pytest.mark.parametrize(
    ("before", "since"),
    [
        (RecordedCondition(replace(READY, reason="Other"), ago(60)), "2025-12-31T23:59:00Z"),
        (RecordedCondition(READY, None), "2026-01-01T00:00:00Z"),
        (RecordedCondition(replace(READY, status="False"), ago(60)), "2026-01-01T00:00:00Z"),
    ],
    ids=["the same status", "no time", "flipped"],
)
def test_a_conditions_time_is_that_of_its_last_flip(before, since):
    pool = replace(POOL, conditions={"Ready": before})
    (condition,) = build_status(observed(pool), planned(), {"Ready": READY})["conditions"]
    assert condition["lastTransitionTime"] == since


def test_a_message_is_as_long_as_a_condition_may_have_it():
    long = replace(READY, message="x" * 5000)
    (condition,) = build_status(observed(), planned(), {"Ready": long})["conditions"]
    assert condition["message"] == "x" * 4096
