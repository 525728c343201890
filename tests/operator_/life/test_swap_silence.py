"""SleepSwap while a worker is not heard, or the kubelet misses a probe: the pod that owns the device stays."""

from __future__ import annotations

import pytest

from tests.operator_.kit import NEW, SWAP, passes, revisions, serving, uids, unheard


async def test_a_worker_that_is_not_heard_as_the_spec_changes_keeps_its_pod(rig):
    await rig.serving(rollout=SWAP)
    before, first = uids(rig), revisions(rig)
    rig.apply(engine=NEW)
    await unheard(rig, times=3)
    assert uids(rig) == before
    await passes(rig, 20)
    assert uids(rig) == before
    assert revisions(rig) != first
    assert len(serving(rig)) == 1


@pytest.mark.parametrize("step", range(1, 10, 2))
async def test_a_worker_that_is_not_heard_once_in_a_swap_keeps_its_pod(rig, step):
    await rig.serving(rollout=SWAP)
    before, first = uids(rig), revisions(rig)
    rig.apply(engine=NEW)
    await passes(rig, step)
    await unheard(rig)
    await passes(rig, 20)
    assert uids(rig) == before
    assert revisions(rig) != first
    assert len(serving(rig)) == 1


async def test_a_probe_that_is_missed_as_the_spec_changes_keeps_the_pod(rig):
    await rig.serving(rollout=SWAP)
    before = uids(rig)
    [name] = rig.pods
    rig.apply(engine=NEW)
    rig.node.miss_probe(name)
    await rig.reconcile()
    assert uids(rig) == before
    await passes(rig, 20)
    assert uids(rig) == before
    assert len(serving(rig)) == 1


async def test_a_pod_whose_probe_fails_is_looked_at_again_once_patience_is_over(rig):
    """No change tells that it stays as it is, and the deadline of the roll-out is ten minutes away."""
    await rig.serving(rollout=SWAP)
    before = uids(rig)
    [name] = rig.pods
    rig.apply(engine=NEW)
    rig.node.miss_probe(name)
    assert await rig.reconcile() == 60.0
    rig.clock.step(60)
    rig.node.miss_probe(name)
    assert await rig.reconcile() == 0.0
    await passes(rig, 20)
    assert not before & uids(rig)
    assert len(serving(rig)) == 1


async def test_a_worker_that_stays_silent_is_replaced(rig):
    await rig.serving(rollout=SWAP, lifecycle={"drainTimeoutSeconds": 60})
    before = uids(rig)
    rig.apply(engine=NEW)
    rig.workers.workers.clear()
    await passes(rig, 3)
    assert uids(rig) == before
    rig.clock.step(61)
    await passes(rig, 3)
    rig.clock.step(61)  # nobody knows what runs there: it has the time to drain
    await passes(rig, 20)
    assert not before & uids(rig)
    assert len(serving(rig)) == 1
    assert rig.condition("Progressing")[1] == "Complete"


async def test_a_worker_that_falls_silent_for_good_in_its_swap_is_replaced(rig):
    await rig.serving(rollout=SWAP, lifecycle={"drainTimeoutSeconds": 60})
    before = uids(rig)
    rig.apply(engine=NEW)
    await passes(rig, 1)
    rig.workers.workers.clear()
    for _ in range(2):
        rig.clock.step(61)
        await passes(rig, 20)
    assert not before & uids(rig)
    assert len(serving(rig)) == 1


async def test_a_worker_that_refuses_the_operator_is_replaced_at_once(rig):
    await rig.serving(rollout=SWAP)
    before = uids(rig)
    rig.worker().unwelcome = "the ticket is of nobody"
    rig.apply(engine=NEW)
    await passes(rig, 20)
    assert not before & uids(rig)
    assert len(serving(rig)) == 1


async def test_a_sleeper_that_cannot_wake_gets_the_new_engine(rig):
    await rig.serving(rollout=SWAP, lifecycle={"desiredState": "Asleep"})
    rig.worker().missing_bytes = 1 << 30
    rig.apply(engine=NEW, lifecycle={"desiredState": "Active"})
    await passes(rig, 30)
    assert len(serving(rig)) == 1
    assert rig.condition("Progressing")[1] == "Complete"


async def test_a_worker_that_crashes_again_and_again_is_recreated_with_what_is_wanted(rig):
    await rig.serving(rollout=SWAP)
    before = uids(rig)
    [name] = rig.pods
    rig.node.crash(name, exit_code=1, restarts=False)
    rig.apply(engine=NEW)
    await passes(rig, 20)
    assert not before & uids(rig)
    assert len(serving(rig)) == 1
