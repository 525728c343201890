"""A request's way to a worker without any wire: order, limits, and that nothing leaks whichever way it goes."""

import asyncio
import math
import sys
from dataclasses import replace
from functools import partial

import pytest

from dormouse_api.status import CallError
from dormouse_gateway.hold.granting import TRUST_AGAIN_S
from dormouse_gateway.hold.terms import HoldLimits
from dormouse_gateway.hold.wait import HoldTicket, Start
from dormouse_gateway.routing.breaker import Verdict
from tests.gateway.hold.world import READY, SETTINGS, TINY, World, ended, settled
from tests.waiting import until


async def test_requests_get_the_worker_in_the_order_of_their_arrival_and_newcomers_stand_behind():
    world, done = World(), asyncio.Event()
    tasks = [world.ask(number, until=done) for number in range(5)]
    await settled()
    assert (repr(world.holder), world.is_wanted()) == (
        "Holder(HoldQueue(5 requests of 50 bytes, default/tiny cold: 5 of 50 bytes))",
        True,
    )
    world.tell(READY)
    tasks.append(world.ask("late", until=done))
    await settled()
    assert (world.got, world.is_wanted(), world.outstanding()) == ([0, 1], False, 2)
    assert set(world.unwanted) == {TINY}
    assert "saturated: 4" in repr(world.holder)
    done.set()
    waits = await asyncio.gather(*tasks)
    assert world.got == [0, 1, 2, 3, 4, "late"]
    assert [wait.start for wait in waits] == [Start.COLD] * 5 + [Start.WARM]
    assert len(world.ends) == 6
    world.check()
    assert world.outstanding() == 0


async def test_a_client_that_goes_at_the_moment_it_gets_a_worker_gives_it_to_the_next():
    world = World(max_num_seqs=1)
    first, second = world.ask("first"), world.ask("second")
    await settled()
    world.tell(READY)
    first.cancel()
    await settled()
    assert (world.got, world.outstanding()) == (["second"], 1)
    await ended(second)
    assert world.outstanding() == 0
    world.check()


async def test_a_client_that_has_just_gone_gets_no_worker():
    world = World(max_num_seqs=1)
    first, second = world.ask("first"), world.ask("second")
    await settled()
    first.cancel()
    world.tell(READY)
    await settled()
    assert (world.got, world.outstanding()) == (["second"], 1)
    await ended(second)


async def test_a_request_waits_for_the_pause_of_a_worker_that_refused_and_is_then_let_in():
    world = World()
    clock = world.router.pool.clock = Clock()
    world.tell(READY)
    with await world.holder.lease(world.router.catalogue.get(TINY), HoldTicket(10, math.inf)) as lease:
        lease.report(Verdict.REFUSED)
    task = world.ask("it")
    await settled()
    assert (world.got, len(world.holder), world.router.pool.probe_in_s(TINY)) == ([], 1, 0.5)
    looks_again_s = world.holder._alarms.due_s(TINY) - asyncio.get_running_loop().time()
    assert looks_again_s <= 0.5, "when the pause ends, not at the next tick"
    clock.now_s = 0.5
    await until(lambda: world.got == ["it"])
    await ended(task)
    world.check()


async def test_when_a_probe_begins_to_answer_those_who_wait_are_let_in():
    world = World()
    clock = world.router.pool.clock = Clock()
    world.tell(READY)
    with await world.holder.lease(world.router.catalogue.get(TINY), HoldTicket(10, math.inf)) as lease:
        lease.report(Verdict.REFUSED)
    clock.now_s = 0.5
    with await world.holder.lease(world.router.catalogue.get(TINY), HoldTicket(10, math.inf)) as probe:
        task = world.ask("it")
        await settled()
        assert (world.got, len(world.holder)) == ([], 1)
        probe.advance()
        await settled()
        assert (world.got, len(world.holder)) == (["it"], 0)
    await ended(task)


class Clock:
    """A clock that stands still."""

    now_s = 0.0

    def __call__(self):
        return self.now_s


async def test_after_the_last_call_nobody_waits_and_who_finds_a_free_worker_still_gets_it():
    world = World()
    waiting = world.ask("held")
    await settled()
    world.holder.hand_back()
    with pytest.raises(CallError, match="shutting down"):
        await waiting
    with pytest.raises(CallError, match="shutting down"):
        await world.ask("new")
    world.tell(READY)
    task = world.ask("free")
    await settled()
    assert world.got == ["free"]
    await ended(task)


async def test_many_heirs_of_a_worker_are_asked_for_once_each_and_together_from_then_on():
    many = 1000
    limits = HoldLimits(max_bytes=100 * many, max_total_requests=many, max_total_bytes=100 * many)
    world = World(max_num_seqs=many, hold=replace(SETTINGS, limits=limits))
    heirs = [world.go_on() for _ in range(many)]
    await settled()
    assert (len(world.holder), world.router.num_asked) == (many, 2 * many), "before it stands in line, and once there"
    world.holder.review(TINY)
    assert world.router.num_asked == 2 * many + 1, "all want the same"
    world.tell(READY)
    await asyncio.gather(*heirs)
    assert (world.got, world.outstanding()) == (["heir"] * many, 0)
    assert world.router.num_asked <= 4 * many + 1, "one more for each that ended"
    world.check()


def calls_of(work):
    """Return how many calls, of Python and of C, the work makes."""
    num_calls = 0

    def count(_frame, event, _arg):
        nonlocal num_calls
        num_calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return num_calls


async def test_the_end_of_a_wait_costs_the_same_however_many_wait_on():
    costs = []
    for num in (10, 500):
        limits = HoldLimits(max_bytes=10 * num, max_total_requests=num, max_total_bytes=10 * num)
        world = World(max_num_seqs=1, hold=replace(SETTINGS, limits=limits))
        heirs = [world.go_on() for _ in range(num)]
        await settled()
        world.tell(READY)
        assert len(world.holder) == num - 1
        costs.append(calls_of(partial(world.holder.review, TINY)))
        await ended(*heirs)
        world.check()
    assert costs[1] < 2 * costs[0]


async def test_who_wants_any_worker_does_not_wait_behind_an_heir_that_must_not_have_this_one_yet():
    world = World()
    clock = world.holder.clock = Clock()
    world.tell(READY)
    heir = world.go_on()
    await settled()
    assert (world.got, len(world.holder)) == ([], 1)
    other = world.ask("other")
    await settled()
    assert (world.got, len(world.holder)) == (["other"], 1)
    clock.now_s = TRUST_AGAIN_S
    world.holder.review(TINY)
    await heir
    assert world.got == ["other", "heir"]
    await ended(other)
    world.check()


async def test_an_order_to_sleep_ends_the_wish_to_wake():
    world = World()
    task = world.ask("it")
    await settled()
    assert world.is_wanted()
    world.put_deployment(lifecycle={"desiredState": "Zero"})
    with pytest.raises(CallError, match="desiredState is Zero"):
        await task
    assert (world.is_wanted(), set(world.unwanted)) == (False, {TINY})


async def test_when_the_last_client_goes_the_operator_is_still_told_when_it_waited():
    world = World()
    task = world.ask("it")
    await settled()
    await ended(task)
    activity = world.router.activity.activity(TINY)
    assert not activity.is_wanted
    assert activity.wanted_s <= world.router.activity.now_s
