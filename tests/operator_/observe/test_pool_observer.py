"""A pool's members are read once for as long as nothing of them changes: a switch makes many passes over all."""

from __future__ import annotations

import pytest

from dormouse_operator.decide.release import Release
from dormouse_operator.decide.seals import Seals
from dormouse_operator.model import Key
from dormouse_operator.observe.pool_observer import PoolObserver
from dormouse_operator.observe.worker_statuses import AskedStatuses
from tests.operator_.pools.one_operator import POOL
from tests.operator_.pools.rig import PoolRig

A, B = Key("team", "a"), Key("team", "b")


@pytest.fixture
async def rig():
    rig = PoolRig()
    rig.pool()
    rig.member("a")
    rig.member("b")
    await rig.steps(3)
    return rig


@pytest.fixture
def look(rig):
    operator = rig.operator
    release = Release(default_image="worker:1", operator_keys=("aa",), seals=Seals(("seed",)))
    observer = PoolObserver(
        rig.kube,
        operator.cache,
        AskedStatuses(rig.workers),
        release=release,
        activities=operator.activities,
        clock=rig.clock,
    )

    async def looked():
        operator.pump.pump()
        snapshot = observer.look(POOL)
        assert snapshot
        return (await observer.observe(POOL, snapshot, {})).observed.members

    looked.observer = observer
    return looked


async def test_who_has_not_changed_is_not_read_again_and_who_has_is(rig, look):
    first, again = await look(), await look()
    assert first[A].pods
    assert again[A].pods is first[A].pods
    assert again[A].deployment is first[A].deployment
    rig.member("b", replicas=3)
    after = await look()
    assert after[A].deployment is first[A].deployment
    assert (first[B].deployment.replicas, after[B].deployment.replicas) == (1, 3)


async def test_who_asks_for_a_member_is_asked_each_time(rig, look):
    assert (await look())[A].activity.held == 0
    rig.held["a"] = 1
    rig.tell()
    assert (await look())[A].activity.held == 1


async def test_of_a_pool_that_is_forgotten_nothing_is_kept(look):
    first = await look()
    look.observer.forget(POOL)
    assert (await look())[A].deployment is not first[A].deployment
