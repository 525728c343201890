"""What the operator's metrics show of a pool, from when it is first seen until it is gone."""

from __future__ import annotations

from dormouse_kube.api import GPU_POOLS
from dormouse_operator.decide.pools.rising import REASONS
from tests.operator_.pools.rig import POOL


def shown(rig):
    """Return what is shown of pools: the metric with its labels but the pool's → value."""
    own = f'namespace="{POOL.namespace}",'
    lines = [line for line in rig.operator.metrics.render().decode().splitlines() if own in line and "_pool_" in line]
    pairs = (line.replace(own, "").replace(f',pool="{POOL.name}"', "").rsplit(" ", 1) for line in lines)
    return {name.replace(f'pool="{POOL.name}"', "").replace("{,", "{"): float(value) for name, value in pairs}


async def test_a_pool_that_is_seen_first_counts_nothing_and_has_all_slots_free(rig):
    await rig.steps(2)
    found = shown(rig)
    assert found['dormouse_pool_slots{phase="Free"}'] == 1
    assert found['dormouse_pool_slots{phase="Held"}'] == 0
    counted = {name: value for name, value in found.items() if "_total" in name}
    assert len(counted) == 1 + len(REASONS), "from the start: a rate does not see a series' first value"
    assert set(counted.values()) == {0}


async def test_a_switch_is_counted_once_for_each_that_comes_to_serve(rig):
    await rig.serve_once("a", "b")
    await rig.steps(3, 0.5)
    assert shown(rig)["dormouse_pool_switches_total{}"] == 2
    assert shown(rig)['dormouse_pool_slots{phase="Held"}'] == 1


async def test_a_member_that_waits_is_counted_and_one_that_waits_too_long_starves(rig):
    rig.pool(policy={"minActiveSeconds": 3600})
    rig.call("a")
    await rig.until(lambda: rig.num_running("a"))
    rig.call("b")
    await rig.steps(3, 10.0)
    waiting = shown(rig)
    assert (waiting["dormouse_pool_waiting_members{}"], waiting["dormouse_pool_starving_members{}"]) == (1, 0)
    assert 10 <= waiting["dormouse_pool_longest_wait_seconds{}"] <= 30
    await rig.steps(12, 10.0)
    assert shown(rig)["dormouse_pool_starving_members{}"] == 1
    assert rig.pool_condition("Starving")[:2] == ("True", "MemberStarves")


async def test_a_pool_that_is_gone_is_shown_no_more(rig):
    await rig.steps(2)
    assert shown(rig)
    await rig.kube.delete(GPU_POOLS, POOL.namespace, POOL.name)
    await rig.steps(2)
    assert shown(rig) == {}
