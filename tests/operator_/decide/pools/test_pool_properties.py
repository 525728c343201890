"""Whatever happens to a pool: no two have memory of a slot, epochs only rise, and everyone who waits is served."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dormouse_operator.decide.pools.commands import DeletePod, GrantDevice, WakeUp
from dormouse_operator.model.pools import PoolPolicy, SlotPhase, TenantState
from tests.operator_.decide.pools.nouns import key, replica
from tests.operator_.decide.pools.world import POLICY, World

NUM_MEMBERS = 4
BOUND_S = 500  # every failure of every member in the way at its deadline, one after the other
members = st.integers(0, NUM_MEMBERS - 1).map(lambda number: key(f"m{number}"))
places = st.integers(0, 2 * NUM_MEMBERS - 1)


class Histories(RuleBasedStateMachine):
    """Requests, faults and an operator that may die after any step."""

    @initialize(awake=st.integers(1, 2), num_slots=st.integers(1, 2))
    def begin(self, awake, num_slots):
        policy = PoolPolicy(**{**fields_of(POLICY), "awake_per_slot": awake})
        self.world = World(num_slots=num_slots, members=NUM_MEMBERS, policy=policy)

    def worker(self, place):
        workers = list(self.world.workers.values())
        return workers[place % len(workers)]

    @rule(member=members, count=st.integers(1, 3))
    def call(self, member, count):
        self.world.call(member, count)

    @rule(member=members)
    def finish(self, member):
        self.world.finish(member)

    @rule(seconds=st.sampled_from([0.2, 1.0, 5.0, 20.0]))
    def pass_time(self, seconds):
        self.world.tick(seconds)

    @rule(passes=st.integers(1, 4), until=st.integers(1, 9))
    def operate(self, passes, until):
        for _ in range(passes):
            self.world.operate(until)
            self.world.tick()

    @rule(place=places, faults=st.lists(st.sampled_from(["", "refuse", "hang", "fail"]), min_size=1, max_size=4))
    def break_next(self, place, faults):
        self.worker(place).faults = tuple(faults)

    @rule(place=places)
    def crash(self, place):
        self.world.crash(self.worker(place))

    @rule(place=places)
    def lose_front(self, place):
        self.worker(place).dead_since = self.world.now

    @rule(place=places)
    def lose_sight(self, place):
        self.world.hidden ^= {self.worker(place).replica}

    @rule(place=places, state=st.sampled_from([TenantState.RISING, TenantState.SERVING, TenantState.FAILED]))
    def intrude(self, place, state):
        self.world.intrude(self.worker(place), state)

    @rule(back=st.integers(1, 12))
    def hear_an_older_operator(self, back):
        """What was told to a worker long ago is told again by somebody who does not know that he was deposed."""
        grants = [sent for sent in self.world.sent if isinstance(sent, GrantDevice)]
        for sent in grants[-back:-1]:
            self.world.do(sent)
            self.world.do(WakeUp(sent.replica, sent.epoch))

    @rule(heard=st.booleans())
    def hear_gateways(self, heard):
        self.world.heard = heard

    @invariant()
    def nobody_has_what_is_not_his(self):
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self):
        """Nothing more fails: everyone who waits is served, also while all are always called."""
        if not hasattr(self, "world"):
            return
        world = self.world
        world.heard, world.hidden = True, set()
        for worker in world.workers.values():
            worker.faults = ()
        for member in world.calls:
            world.call(member)
        waiting = set(world.calls)
        for _ in range(BOUND_S):
            world.operate()
            world.tick()
            waiting -= {member for member in world.calls if world.serving(member)}
            if not waiting:
                return
        raise AssertionError(f"{waiting} wait for ever: {world.slots}")


def fields_of(policy):
    return {name: getattr(policy, name) for name in type(policy).__dataclass_fields__}


Histories.TestCase.settings = settings(stateful_step_count=30, deadline=None, phases=(Phase.explicit, Phase.generate))
TestHistories = Histories.TestCase


def busy(world, seconds, step_s=0.25):
    """Keep all members called all the time; each request runs for two seconds."""
    for number in range(int(seconds / step_s)):
        for member in world.calls:
            if number % 8 == 0:
                world.finish(member)
            world.call(member)
        world.operate()
        world.tick(step_s)
    return world


def test_two_that_are_always_busy_share_a_slot_and_little_goes_to_switching():
    world = busy(World(num_slots=1, members=2, policy=PoolPolicy()), 1200)
    for seconds in world.served_s.values():
        assert seconds >= 0.4 * 1200
    assert world.switching_s <= 0.1 * 1200


@pytest.mark.parametrize("order", ["Fair", "Priority"])
def test_of_many_that_are_always_busy_each_waits_no_longer_than_the_others_turns(order):
    policy = PoolPolicy(order=order)
    world = busy(World(num_slots=1, members=6, policy=policy), 1200)
    a_turn_s = policy.min_active_s + policy.drain_s + 5
    assert max(world.longest_wait_s.values()) <= 6 * a_turn_s
    assert min(world.served_s.values()) > 0.1 * 1200


def test_a_late_grant_means_nothing_to_a_container_that_has_restarted():
    """It knows of no epoch, so an older operator's command would be as good as any to it."""
    world = World(num_slots=1, members=2)
    for member in world.calls:
        world.call(member)
        for _ in range(20):
            world.operate()
            world.tick()
        world.finish(member)
    granted = [sent for sent in world.sent if isinstance(sent, GrantDevice)]
    assert [sent.replica.key for sent in granted] == list(world.calls)
    world.crash(world.workers[granted[0].replica])
    world.tick(5)
    world.do(granted[0])
    assert world.workers[granted[0].replica].grant_epoch == 0


def test_who_waits_is_served_though_an_intruder_does_not_do_what_it_is_told():
    """Its engine does not end, so its pod has to go; who was granted the slot in the meantime is not blamed."""
    world = World(num_slots=1, members=2)
    intruder = world.workers[replica("m1")]
    intruder.faults = ("hang",) * 99
    world.intrude(intruder, TenantState.FAILED)
    world.call(key("m0"))
    for _ in range(20):
        world.operate()
        world.tick()
    assert world.serving(key("m0"))
    assert not any(slot.refusals for slot in world.slots.values())
    assert DeletePod(intruder.replica) in world.sent


def test_a_pool_at_rest_writes_nothing():
    world = World()
    world.call(key("m0"))
    for _ in range(20):
        world.operate()
        world.tick()
    before = dict(world.slots)
    assert SlotPhase.HELD in {slot.phase for slot in before.values()}
    for _ in range(20):
        world.operate()
        world.tick()
    assert world.slots == before
