"""A request's way to a worker without any wire: order, limits, and that nothing leaks whichever way it goes."""

import asyncio
import math
import sys
from dataclasses import replace
from functools import partial
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dormouse_api.status import CallError
from dormouse_gateway.activity import WorkerLoad
from dormouse_gateway.hold.holder import TRUST_AGAIN_S, Holder
from dormouse_gateway.hold.line import HoldLimits, HoldSettings
from dormouse_gateway.hold.wait import HoldTicket, Start
from dormouse_gateway.router import Router
from dormouse_gateway.routing.breaker import Verdict
from dormouse_gateway.testing.slices import slice_of
from dormouse_gateway.testing.workers import NAMESPACE, infd, pod
from dormouse_kube.reflector import ObjectKey
from tests.waiting import until

TINY, POD = ObjectKey(NAMESPACE, "tiny"), ObjectKey(NAMESPACE, "tiny-0")
READY, ASLEEP = WorkerLoad(0, 0, 0.0, is_ready=True), WorkerLoad(0, 0, 0.0, is_ready=False)
MADE = ("p", "new", *(f"p{number}" for number in range(20)))  # UIDs of the pods that the operator made
SETTINGS = HoldSettings(
    limits=HoldLimits(max_bytes=1000, max_total_requests=100, max_total_bytes=1000),
    saturated_timeout_s=30.0,
    worker_queue=0,
)


class CountingRouter(Router):
    """Counts how often it is asked for a worker."""

    num_asked = 0

    def try_lease(self, *args, **kwargs):
        self.num_asked += 1
        return super().try_lease(*args, **kwargs)


class World:
    """A model with one worker, which sleeps, and who waits for it."""

    def __init__(self, max_num_seqs=2, *, hold=SETTINGS):
        self.unwanted, self.ends = [], []
        self.router = CountingRouter(on_close=lambda _: None)
        self.router.is_synced = True
        self.holder = Holder(
            self.router, hold, on_unwanted=self.unwanted.append, on_end=lambda *end: self.ends.append(end)
        )
        self.put_deployment(engine={"maxNumSeqs": max_num_seqs})
        self.put_pod()
        self.tell(ASLEEP)
        self.got = []  # who got a worker, in order

    def put_deployment(self, status=None, **spec):
        obj = infd("tiny", **spec) | {"status": dict(status or {})}
        obj["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
        obj["status"]["pods"] = [{"name": "tiny-0", "uid": uid, "revision": "r1"} for uid in MADE]
        self.router.on_deployment(TINY, obj)

    def put_pod(self, uid="p"):
        obj = pod("tiny-0", "tiny", ready=False)
        obj["metadata"]["uid"] = uid
        self.router.on_slice(POD, slice_of(obj))
        self.endpoint = self.router.pool.endpoint_of(POD)

    def tell(self, load):
        self.router.note_load(self.endpoint, load)

    def ask(self, name, *, seconds=60.0, until=None):
        """Return a task that asks for a worker and keeps it until the event is set."""
        return asyncio.create_task(self._ask(name, seconds, until or asyncio.Event()))

    async def _ask(self, name, seconds, until):
        wait = HoldTicket(10, asyncio.get_running_loop().time() + seconds)
        with await self.holder.lease(self.router.catalogue.get(TINY), wait):
            self.got.append(name)
            await until.wait()
        return wait

    def go_on(self, *, seconds=60.0):
        """Return a task that asks for a worker for the rest of what the one here began and just lost."""
        return asyncio.create_task(self._go_on(seconds))

    async def _go_on(self, seconds):
        wait, lost = HoldTicket(10, self.holder.clock() + seconds), self.router.pool.endpoint_of(POD)
        deployment, tried = self.router.catalogue.get(TINY), {lost.id: lost.openings}
        with await self.holder.lease_heir(deployment, wait, like=lost, tried=tried):
            self.got.append("heir")

    def is_wanted(self):
        """Return whether the operator is told that somebody waits for a wake."""
        activity = self.router.activity.activity(TINY)
        return activity is not None and activity.is_wanted

    def outstanding(self):
        return self.router.pool.in_flight().total()

    def check(self):
        self.holder.check_integrity()
        line = self.holder._queue
        assert self.router.activity.activity(TINY) is None or (
            self.router.activity.activity(TINY).held == line.count(TINY)
        )


async def settled():
    for _ in range(10):
        await asyncio.sleep(0)


async def ended(*tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


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
    looks_again_s = world.holder._timers[TINY].when() - asyncio.get_running_loop().time()
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


STEPS = st.sampled_from(["ask", "ask", "ask", "cancel", "end", "wake", "sleep", "lose", "order", "serve", "delete"])


@given(st.lists(st.tuples(STEPS, st.integers(0, 20), st.booleans()), max_size=40))
@settings(max_examples=100, deadline=None)
def test_whatever_happens_no_request_and_no_worker_leaks(steps):
    asyncio.run(_play(steps))


async def _play(steps):
    world, tasks, num_asked = World(), [], 0
    for step, which, is_settled in steps:
        if step == "ask" and world.router.catalogue.get(TINY):
            done = asyncio.Event()
            tasks.append((world.ask(num_asked, until=done), done))
            num_asked += 1
            await settled()  # it has arrived
        elif step in {"cancel", "end"} and tasks:
            task, done = tasks[which % len(tasks)]
            task.cancel() if step == "cancel" else done.set()
        elif step in {"wake", "sleep", "lose"}:
            world.tell({"wake": READY, "sleep": ASLEEP, "lose": None}[step])
        elif step in {"order", "serve"}:
            state = "Asleep" if step == "order" else "Auto"
            world.put_deployment(engine={"maxNumSeqs": 2}, lifecycle={"desiredState": state})
        elif step == "delete":
            world.router.on_deployment(TINY, None)
        if is_settled:
            await settled()
        world.check()
        assert world.outstanding() <= 2
    await settled()
    assert world.got == sorted(world.got), "in the order of arrival"
    await ended(*(task for task, _ in tasks))
    assert (len(world.holder), world.outstanding(), world.is_wanted()) == (0, 0, False)
    assert len(world.ends) <= num_asked
    world.check()


def asleep(level):
    message = f"1 of 1 workers are asleep at level {level}; freed 1.00 GiB"
    return {"phase": "Asleep", "conditions": [{"type": "Asleep", "status": "True", "message": message}]}


class Life(World):
    """Brings the model to where a caller finds it when it is already on its way to serve."""

    def __init__(self):
        super().__init__()
        self.num_pods = 0

    def come_from(self, start):
        match start:
            case Start.LEVEL1 | Start.LEVEL2 | Start.LEVEL3:
                self.tell(ASLEEP)
                self.put_deployment(asleep(int(start[-1])))
                self.put_deployment({"phase": "Waking"})
                self.put_deployment({"phase": "Profiling" if start is Start.LEVEL3 else "Waking"})
            case Start.COLD:
                self.tell(ASLEEP)
                self.put_deployment({"phase": "Zero"})
                self.router.on_slice(POD, None)
                self.num_pods += 1
                self.put_pod(f"p{self.num_pods}")
                self.tell(ASLEEP)
                self.put_deployment({"phase": "Starting"})
            case Start.WARM:
                self.tell(READY)

    async def start_of_a_late_caller(self):
        """Return what a request is told that comes just before the worker serves."""
        done = asyncio.Event()
        done.set()
        task = self.ask("late", until=done)
        await settled()
        self.tell(READY)
        return (await task).start


@pytest.mark.parametrize("starts", list(permutations(Start, 3)), ids="-".join)
async def test_a_late_caller_is_told_where_its_worker_came_from_whatever_was_before(starts):
    life = Life()
    for start in (*starts, *starts):
        life.come_from(start)
        assert await life.start_of_a_late_caller() is start
    life.check()


@pytest.mark.parametrize("level", [1, 2, 3])
async def test_what_slept_went_to_zero_and_starts_is_cold_though_it_served_nobody_between(level):
    life = Life()
    life.put_deployment(asleep(level))
    life.come_from(Start.COLD)
    assert await life.start_of_a_late_caller() is Start.COLD


async def test_of_several_workers_one_that_slept_is_enough_for_the_level():
    life = Life()
    life.put_deployment(asleep(2))
    other = pod("tiny-1", "tiny", "10.0.0.2:50051", ready=False)
    other["metadata"]["uid"] = "new"
    life.router.on_slice(ObjectKey(NAMESPACE, "tiny-1"), slice_of(other))
    life.put_deployment({"phase": "Waking"})
    assert await life.start_of_a_late_caller() is Start.LEVEL2
