"""Streams and places in line are shared by weight among keys, and one that is alone may take all."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_api.status import CallError
from dormouse_gateway.activity import WorkerLoad
from dormouse_gateway.clients.shares import NOBODYS, RECENT_S, Flow, Shares
from dormouse_gateway.hold.line import Held, HoldQueue
from dormouse_gateway.hold.terms import HoldLimits, WaitPolicy, WaitReason
from dormouse_gateway.hold.wait import HoldTicket
from tests.gateway.hold.world import READY, TINY, World
from tests.waiting import until

GREEDY, MODEST, HEAVY = Flow("greedy"), Flow("modest"), Flow("heavy", 3)


class Clock:
    """A clock that is stepped."""

    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def shares(clock):
    return Shares(clock)


def taken(shares, flow, num_places, most=100):
    """Start streams of a flow until it may not; return how many."""
    shares.arrive("m", flow)
    count = 0
    while count < most and shares.may_start("m", flow, lambda: num_places):
        shares.start("m", flow)
        count += 1
    return count


def test_a_key_that_is_alone_may_take_all_and_more_to_wait_at_workers(shares):
    assert taken(shares, GREEDY, 8) == 100


def test_one_place_stays_free_for_a_key_that_came_lately_and_more_while_it_uses_them(shares):
    shares.arrive("m", MODEST)
    assert taken(shares, GREEDY, 8) == 7
    assert taken(shares, MODEST, 8) == 4, "its share, whatever others took before"


def test_a_key_that_came_long_ago_keeps_nothing_free(shares, clock):
    shares.arrive("m", MODEST)
    clock.now_s += RECENT_S
    assert taken(shares, GREEDY, 8) == 100


def test_shares_are_by_weight(shares):
    shares.arrive("m", HEAVY)
    shares.arrive("m", GREEDY)
    assert [taken(shares, flow, 8) for flow in (HEAVY, GREEDY)] == [7, 2]
    shares.end("m", HEAVY)
    shares.end("m", HEAVY)
    assert [taken(shares, flow, 8) for flow in (GREEDY, HEAVY)] == [0, 1]
    assert repr(shares) == "Shares({'m': {'heavy': 6, 'greedy': 2}})"


def test_a_share_is_at_least_one_stream(shares):
    for number in range(10):
        assert taken(shares, Flow(str(number)), 4) >= 1


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=200), st.integers(1, 16))
def test_what_others_keep_free_is_never_taken(steps, num_places):
    """Whoever has fewer than his share may always begin one."""
    shares, flows, running = Shares(Clock()), [Flow(str(n), n + 1) for n in range(4)], [0] * 4
    for flow in flows:
        shares.arrive("m", flow)
    for number, is_start in steps:
        if is_start and shares.may_start("m", flows[number], lambda: num_places):
            shares.start("m", flows[number])
            running[number] += 1
        elif not is_start and running[number]:
            shares.end("m", flows[number])
            running[number] -= 1
    for number, flow in enumerate(flows):
        if running[number] < max(1, num_places * flow.weight // 10):
            assert shares.may_start("m", flow, lambda: num_places)


def queue_of(*flows):
    queue = HoldQueue(HoldLimits(max_bytes=10_000, max_total_requests=1000, max_total_bytes=10_000))
    for number, flow in enumerate(flows):
        queue.enter(Held(TINY, 1, float(number), flow=flow), WaitPolicy(WaitReason.COLD, 300.0), max_requests=1000)
    return queue


def order(queue):
    names = []
    for held in queue.in_turn(TINY):
        queue.leave(held)
        names.append(held.flow.name)
        queue.check_integrity()
    return names


def test_keys_take_turns_in_line_and_each_one_s_requests_stay_in_order():
    assert order(queue_of(GREEDY, GREEDY, GREEDY, MODEST, MODEST)) == ["greedy", "modest", "greedy", "modest", "greedy"]


def test_turns_are_by_weight():
    names = order(queue_of(*[GREEDY] * 6, *[HEAVY] * 6))
    assert names[:8].count("heavy") == 6


def test_who_came_late_owes_nothing_and_is_owed_nothing():
    queue = queue_of(*[GREEDY] * 6)
    for _ in range(4):
        queue.leave(next(queue.in_turn(TINY)))
    for _ in range(3):
        queue.enter(Held(TINY, 1, 9.0, flow=MODEST), WaitPolicy(WaitReason.COLD, 300.0), max_requests=1000)
    assert order(queue) == ["modest", "greedy", "modest", "greedy", "modest"]


async def ask(world, flow, until_=None):
    wait = HoldTicket(1, asyncio.get_running_loop().time() + 60, flow=flow)
    with await world.holder.lease(world.router.catalogue.get(TINY), wait):
        world.got.append(flow.name)
        await (until_ or asyncio.Event()).wait()


async def test_the_greedy_waits_while_the_modest_goes_at_once_past_a_full_line():
    world = World(max_num_seqs=4)
    world.put_deployment(engine={"maxNumSeqs": 4}, lifecycle={"maxHeldRequests": 3})
    world.tell(READY)
    first = asyncio.Event()
    modest = asyncio.create_task(ask(world, MODEST, first))
    await until(lambda: world.got == ["modest"])
    greedy = [asyncio.create_task(ask(world, GREEDY)) for _ in range(8)]
    await until(lambda: sum(task.done() for task in greedy) == 3)
    assert world.got == ["modest", "greedy", "greedy"], "one place is kept for one more of the modest"
    second = asyncio.create_task(ask(world, MODEST))
    await until(lambda: world.got.count("modest") == 2)
    refused = [task for task in greedy if task.done()]
    assert all(isinstance(task.exception(), CallError) for task in refused)
    for task in (modest, second, *greedy):
        task.cancel()
    await asyncio.gather(modest, second, *greedy, return_exceptions=True)
    world.holder.check_integrity()


async def test_who_takes_most_of_a_full_line_makes_room_for_who_takes_little():
    world = World(max_num_seqs=1)
    world.put_deployment(engine={"maxNumSeqs": 1}, lifecycle={"maxHeldRequests": 3})
    greedy = [asyncio.create_task(ask(world, GREEDY)) for _ in range(3)]
    await until(lambda: len(world.holder) == 3)
    modest = asyncio.create_task(ask(world, MODEST))
    await until(greedy[2].done)
    assert greedy[2].exception().reason == "hold_full"
    last = asyncio.create_task(ask(world, GREEDY))
    await until(last.done)
    assert last.exception().reason == "hold_full"
    world.tell(WorkerLoad(0, 0, 0.0, is_ready=True))
    await until(lambda: world.got == ["greedy"])
    for task in (modest, *greedy):
        task.cancel()
    await asyncio.gather(modest, *greedy, return_exceptions=True)
    world.holder.check_integrity()


def test_callers_without_a_key_are_one():
    assert order(queue_of(NOBODYS, NOBODYS, MODEST)) == ["", "modest", ""]
