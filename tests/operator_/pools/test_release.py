"""A pool that nobody has called for long has no pods, and its claims no devices; a request brings them back."""

from __future__ import annotations

import asyncio

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dormouse_kube.api import GPU_POOLS, RESOURCE_CLAIMS
from dormouse_operator.parse import parse_pool
from tests.operator_.pools.rig import POOL, PoolRig


def is_released(rig):
    return parse_pool(rig.kube.peek(GPU_POOLS, *POOL[:2])).is_released


async def released(rig, *names):
    """Let the time pass in which nobody calls, until no member has a pod."""
    rig.pool(releaseAfterSeconds=60)
    await rig.until(lambda: is_released(rig), limit=120, seconds=10.0)
    await rig.until(lambda: not any(rig.pods_of(name) for name in names or ("a", "b")), seconds=1.0)


async def test_after_so_long_without_anybody_awake_the_pods_go_and_everything_says_why(rig):
    await released(rig)
    await rig.steps(5, 10.0)
    assert [rig.pods_of(name) for name in ("a", "b")] == [[], []]
    assert rig.kube.peek(RESOURCE_CLAIMS, POOL.namespace, "gpus-0"), "the claim waits for its next consumer"
    assert rig.pool_condition("Allocated")[:2] == ("Unknown", "Released")
    assert rig.condition("a", "Ready") == (
        "True",
        "Released",
        "GpuPool gpus is released: no pod; a request brings them back",
    )
    assert rig.status("a")["phase"] == "Zero"
    assert sum(event.startswith("Released") for event in rig.events) == 1


async def test_a_holder_keeps_the_pool_until_its_own_ladder_has_it_asleep(rig):
    rig.member("a", lifecycle={"level1AfterSeconds": 300})
    await rig.serve_once("a")
    rig.pool(releaseAfterSeconds=60)
    await rig.steps(20, 10.0)
    assert rig.serves("a")
    await released(rig)


async def test_a_call_brings_pods_and_devices_back_and_is_served(rig):
    await rig.serve_once("a")
    rig.member("a", lifecycle={"level1AfterSeconds": 60, "minActiveSeconds": 0})
    await released(rig)
    rig.call("b")
    await rig.until(lambda: rig.num_running("b"), seconds=1.0)
    assert not is_released(rig)
    assert rig.worker("b").grant.budget_bytes > 0, "the device was measured before"
    assert len(rig.workers_of("a")) == 1, "all members are there again: any may be called next"
    assert any(event.startswith("Recalled") for event in rig.events)
    rig.finish("b")
    await rig.steps(3, 10.0)
    assert rig.serves("b")


async def test_a_call_while_pods_go_waits_for_the_next_ones(rig):
    rig.pool(releaseAfterSeconds=60)
    rig.node.lost |= {*rig.pods_of("a"), *rig.pods_of("b")}  # their ends take their time
    await rig.until(lambda: is_released(rig), limit=120, seconds=10.0)
    rig.call("a")
    await rig.steps(3, 1.0)
    assert rig.held["a"] == 1
    rig.node.lost.clear()
    await rig.until(lambda: rig.num_running("a"), seconds=1.0)


async def test_a_member_that_comes_to_a_released_pool_has_no_pod_until_it_is_called(rig):
    await released(rig)
    rig.member("c")
    await rig.steps(5, 1.0)
    assert rig.pods_of("c") == []
    rig.call("c")
    await rig.until(lambda: rig.num_running("c"), seconds=1.0)


async def test_a_pool_that_is_released_no_more_by_its_spec_has_its_pods_again(rig):
    await released(rig)
    rig.pool(releaseAfterSeconds=0)
    await rig.until(lambda: rig.workers_of("a") and rig.workers_of("b"), seconds=1.0)


async def test_an_operator_that_comes_new_keeps_it_released_and_serves_who_calls(rig):
    await released(rig)
    rig.restart_operator()
    await rig.steps(5, 1.0)
    assert rig.pods_of("a") == []
    rig.call("a")
    await rig.until(lambda: rig.num_running("a"), seconds=1.0)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.sampled_from("ab")),
        st.tuples(st.just("finish"), st.sampled_from("ab")),
        st.tuples(st.just("wait"), st.sampled_from([1.0, 30.0, 70.0])),
        st.tuples(st.just("after"), st.sampled_from([0, 60, 600])),
        st.tuples(st.just("restart"), st.none()),
    ),
    max_size=12,
)


@settings(max_examples=8, deadline=None, derandomize=True, phases=(Phase.generate, Phase.shrink))
@given(EVENTS)
def test_whatever_people_and_clocks_do_everyone_who_calls_is_served(events):
    asyncio.run(_play(events))


async def _play(events):
    rig = PoolRig()
    rig.pool(releaseAfterSeconds=60)
    for name in "ab":
        rig.member(name, lifecycle={"level1AfterSeconds": 60, "minActiveSeconds": 1})
    await rig.steps(3)
    for what, value in events:
        if what == "call":
            rig.call(value)
        elif what == "finish":
            rig.finish(value)
        elif what == "after":
            rig.pool(releaseAfterSeconds=value)
        elif what == "restart":
            await rig.operator.pools.stop()
            rig.restart_operator()
        await rig.steps(2, value if what == "wait" else 1.0)
        if is_released(rig):
            assert not any(rig.held.values()), "a pool that is called is not released"
            assert not any(rig.num_running(name) for name in "ab")
    await _serve_everyone(rig)
    await rig.operator.pools.stop()


async def _serve_everyone(rig):
    """Have both called; whoever serves has done with it by the next step."""
    for name in "ab":
        rig.call(name)
    unserved = set("ab")
    for _ in range(100):
        for name in "ab":
            if rig.num_running(name):
                unserved.discard(name)
                rig.finish(name)
        if not unserved:
            return
        await rig.step(1.0)
    raise AssertionError(f"{unserved} unserved: {rig.slots()}, {rig.states()}, {rig.events}")
