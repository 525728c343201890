"""The planner of roll-outs by other pods, called in a loop to the end: it ends, and never leaves its limits."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_operator.decide.rollout.limits import Limits, in_place_limits, may_surge, surge_limits
from dormouse_operator.decide.rollout.surge import Counts, Step, next_step
from dormouse_operator.model import Rollout
from dormouse_operator.model.wanted import Placement, PoolMember
from dormouse_operator.testing.nouns import a_deployment


@dataclass
class World:
    """So many pods of each kind; `luck` says in which order things become ready and gone."""

    wanted: int
    old_ready: int
    old_idle: int
    new_ready: int
    new_idle: int
    ending: int
    limits: Limits

    @property
    def counts(self) -> Counts:
        return Counts(
            wanted=self.wanted,
            old_total=self.old_ready + self.old_idle,
            new_ready=self.new_ready,
            new_total=self.new_ready + self.new_idle,
            ending=self.ending,
        )

    @property
    def total(self) -> int:
        return self.old_ready + self.old_idle + self.new_ready + self.new_idle + self.ending

    @property
    def ready(self) -> int:
        return self.old_ready + self.new_ready

    def carry_out(self, step: Step) -> None:
        """Do it, and check that it was allowed."""
        before = self.ready
        if step.verb == "create":
            self.new_idle += step.count
            assert self.total <= self.wanted + self.limits.max_surge, "surge exceeded"
            assert self.new_ready + self.new_idle <= self.wanted
            return
        idle = min(step.count, self.old_idle)
        self.old_idle -= idle
        self.old_ready -= step.count - idle
        self.ending += step.count
        assert self.old_ready >= 0
        assert self.ready >= min(before, self.wanted - self.limits.max_unavailable), "availability undercut"

    def let_happen(self, new_come_up: bool) -> bool:
        """Let one thing happen that nobody orders; tell whether there was one."""
        if new_come_up and self.new_idle:
            self.new_idle, self.new_ready = self.new_idle - 1, self.new_ready + 1
            return True
        if self.ending:
            self.ending -= 1
            return True
        return False


numbers = st.integers(0, 6)
limits = st.tuples(numbers, numbers).filter(any).map(lambda pair: Limits(*pair))
worlds = st.builds(World, *[numbers] * 5, st.integers(0, 3), limits).filter(
    lambda world: world.new_ready + world.new_idle <= world.wanted
)


def roll_out(world: World, *, new_come_up: bool = True) -> int:
    """Go on until nothing is planned and nothing happens any more; return the number of rounds."""
    for rounds in range(200):
        step = next_step(world.counts, world.limits)
        if step:
            assert step.count > 0
            world.carry_out(step)
        if not world.let_happen(new_come_up) and not step:
            return rounds
    raise AssertionError(f"it does not end: {world}")


@given(worlds)
def test_every_roll_out_ends_with_the_new_pods_only(world):
    roll_out(world)
    assert (world.old_ready, world.old_idle, world.ending) == (0, 0, 0)
    assert world.new_ready == world.wanted


@given(worlds)
def test_where_no_new_pod_comes_up_the_old_ones_serve_on(world):
    before = world.ready
    roll_out(world, new_come_up=False)
    assert world.ready >= min(before, world.wanted - world.limits.max_unavailable)


@given(worlds, st.integers(0, 30))
def test_the_return_to_the_old_spec_keeps_every_old_pod_that_is_left(world, rounds):
    """What was old is new. No pod is created as long as there are as many as are wanted."""
    for _ in range(rounds):
        if step := next_step(world.counts, world.limits):
            world.carry_out(step)
        world.let_happen(new_come_up=False)
    if world.old_ready + world.old_idle > world.wanted:
        return
    world.old_ready, world.new_ready = world.new_ready, world.old_ready
    world.old_idle, world.new_idle = world.new_idle, world.old_idle
    kept = world.new_ready
    roll_out(world)
    assert world.new_ready == world.wanted >= kept


def test_one_pod_with_surge_is_replaced_without_a_moment_of_absence():
    world = World(1, 1, 0, 0, 0, 0, Limits(1, 0))
    assert next_step(world.counts, world.limits) == Step("create", 1)
    world.carry_out(Step("create", 1))
    assert next_step(world.counts, world.limits) is None
    world.let_happen(new_come_up=True)
    assert next_step(world.counts, world.limits) == Step("remove", 1)


def test_without_surge_the_device_is_given_back_first():
    world = World(1, 1, 0, 0, 0, 0, Limits(0, 1))
    assert next_step(world.counts, world.limits) == Step("remove", 1)
    world.carry_out(Step("remove", 1))
    assert next_step(world.counts, world.limits) is None, "the old pod still holds it"
    world.let_happen(new_come_up=False)
    assert next_step(world.counts, world.limits) == Step("create", 1)


def test_an_old_pod_that_may_serve_again_stays_as_long_as_it_is_needed():
    assert next_step(World(2, 1, 1, 0, 1, 0, Limits(1, 0)).counts, Limits(1, 0)) is None


def test_one_that_does_not_serve_goes_before_one_that_serves():
    world = World(2, 1, 1, 1, 0, 0, Limits(1, 0))
    step = next_step(world.counts, world.limits)
    assert step == Step("remove", 1)
    world.carry_out(step)
    assert (world.old_ready, world.old_idle) == (1, 0)


def test_off_removes_everything_at_once():
    assert next_step(World(0, 3, 1, 0, 0, 0, Limits(1, 0)).counts, Limits(1, 0)) == Step("remove", 4)


@pytest.mark.parametrize(
    ("surge", "unavailable", "wanted", "expected"),
    [
        ("25%", 0, 1, (1, 0)),
        ("25%", "25%", 10, (3, 2)),
        ("0%", "25%", 3, (0, 1)),
        (2, "100%", 3, (2, 3)),
        ("25%", 0, 0, (0, 1)),
        (0, 1, 5, (0, 1)),
    ],
)
def test_shares_are_rounded_as_deployments_do(surge, unavailable, wanted, expected):
    limits = surge_limits(Rollout(max_surge=surge, max_unavailable=unavailable), wanted)
    assert (limits.max_surge, limits.max_unavailable) == expected


def test_in_place_there_is_no_surge_and_always_one_at_a_time():
    assert in_place_limits(Rollout(max_surge=3), 4) == Limits(0, 1)
    assert in_place_limits(Rollout(max_unavailable="50%"), 5) == Limits(0, 2)


def test_a_share_of_many_is_exact():
    assert surge_limits(Rollout(max_surge="25%", max_unavailable="25%"), 404) == Limits(101, 101)
    assert in_place_limits(Rollout(max_unavailable="50%"), 4) == Limits(0, 2)


def test_only_surge_takes_more_pods_than_wanted_and_never_on_a_pools_slots():
    pooled = Placement(pool=PoolMember(name="gpus"))
    assert may_surge(a_deployment(rollout=Rollout(strategy="Surge")))
    assert not may_surge(a_deployment(rollout=Rollout(strategy="Recreate")))
    assert not may_surge(a_deployment(rollout=Rollout(strategy="Surge"), placement=pooled))
