"""One operator acts; its epoch rises with every change of hands; a stale one stops by itself."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from dormouse_kube.api import LEASES
from dormouse_kube.errors import Conflict, Unavailable
from dormouse_kube.testing import FakeKube
from dormouse_operator.errors import NotLeading
from dormouse_operator.lead.election import Leadership, boot_time_s
from dormouse_operator.testing.kube import SteppedClock


@dataclass
class Stage:
    """A cluster and a clock; `sleep` lets time pass and runs whatever a test put there."""

    kube: FakeKube = field(default_factory=FakeKube)
    clock: SteppedClock = field(default_factory=lambda: SteppedClock(datetime(2025, 1, 1, tzinfo=UTC)))  # epoch one
    pauses: list[float] = field(default_factory=list)
    acts: list = field(default_factory=list)  # one is called at each pause

    def monotonic(self) -> float:
        return self.clock.now.timestamp()

    async def sleep(self, seconds: float) -> None:
        self.clock.step(seconds)
        self.pauses.append(seconds)
        if self.acts:
            await self.acts.pop(0)()
        await asyncio.sleep(0)

    async def nothing(self) -> None:
        """Let time pass only."""

    def operator(self, pod_uid: str = "pod-a", **kwargs) -> Leadership:
        self.clock.step(0.01)
        return Leadership(
            self.kube,
            namespace="system",
            name="release-operator",
            pod_uid=pod_uid,
            clock=self.clock,
            monotonic=self.monotonic,
            **kwargs,
        )

    @property
    def lease(self):
        return self.kube.peek(LEASES, "system", "release-operator")["spec"]


FREE = {
    "metadata": {"namespace": "system", "name": "release-operator"},
    "spec": {"holderIdentity": "", "leaseTransitions": 0},
}


@pytest.fixture
def stage() -> Stage:
    """A lease is there, and nobody's."""
    stage = Stage()
    stage.kube.put(LEASES, FREE)
    return stage


async def test_the_first_operator_takes_the_lease_with_epoch_one(stage):
    first = stage.operator()
    with pytest.raises(NotLeading):
        first.check()
    await first.acquire(stage.sleep)
    first.check()
    assert first.epoch == stage.lease["leaseTransitions"] == 1
    assert stage.lease["holderIdentity"] == first.identity
    assert stage.pauses == []
    assert repr(first) == "Leadership(system/release-operator, epoch 1, held=True)"


async def test_who_makes_the_lease_waits_for_the_next_second_so_that_no_two_count_the_same_epoch():
    stage = Stage()
    first, second = stage.operator("pod-a"), stage.operator("pod-b")
    await first.acquire(stage.sleep)
    assert stage.pauses == [pytest.approx(0.98)]
    await stage.kube.delete(LEASES, "system", "release-operator")
    await second.acquire(stage.sleep)
    assert (first.epoch, second.epoch) == (1, 2)


async def test_a_second_operator_waits_until_the_lease_did_not_change_for_its_duration(stage):
    await stage.operator("pod-a").acquire(stage.sleep)
    second = stage.operator("pod-b")
    await second.acquire(stage.sleep)
    assert sum(stage.pauses) == pytest.approx(15.0)
    assert second.epoch == 2


async def test_a_renewed_lease_is_waited_for_longer(stage):
    first = stage.operator("pod-a")
    await first.acquire(stage.sleep)

    async def renew():
        await first.raise_above(first.epoch)

    stage.acts = [stage.nothing] * 8 + [renew]
    await stage.operator("pod-b").acquire(stage.sleep)
    assert sum(stage.pauses) == pytest.approx(24.0)


async def test_an_earlier_process_of_the_same_pod_is_succeeded_at_once(stage):
    await stage.operator("pod-a").acquire(stage.sleep)
    again = stage.operator("pod-a")
    await again.acquire(stage.sleep)
    assert stage.pauses == []
    assert again.epoch == 2


async def test_a_released_lease_is_taken_at_once(stage):
    first = stage.operator("pod-a")
    await first.acquire(stage.sleep)
    await first.release()
    second = stage.operator("pod-b")
    await second.acquire(stage.sleep)
    assert stage.pauses == []
    assert second.epoch == 2
    await first.release()  # a second time changes nothing
    assert stage.lease["holderIdentity"] == second.identity


async def test_of_two_that_see_a_free_lease_one_gets_it(stage):
    stage.kube.fail("replace", LEASES, Conflict("changed"))
    operator = stage.operator()
    await operator.acquire(stage.sleep)
    assert stage.pauses == [1.0]


async def test_the_holder_stops_when_it_sees_another(stage):
    first = stage.operator("pod-a")
    await first.acquire(stage.sleep)
    stage.kube.edit(LEASES, "system", "release-operator", lambda lease: lease["spec"].update(holderIdentity="pod-b/1"))
    with pytest.raises(NotLeading, match="pod-b"):
        await first.keep(stage.sleep)
    with pytest.raises(NotLeading):
        first.check()


async def test_the_holder_stops_when_it_can_not_renew_for_too_long(stage):
    first = stage.operator("pod-a")
    await first.acquire(stage.sleep)
    stage.kube.fail("replace", LEASES, Unavailable("down"), times=99)
    with pytest.raises(NotLeading, match=r"renewed 1[0-4] s ago"):
        await first.keep(stage.sleep)
    assert sum(stage.pauses) < 15.0, "before another may start"


async def test_a_short_outage_is_survived_and_renewals_come_every_two_seconds(stage):
    first = stage.operator("pod-a")
    await first.acquire(stage.sleep)
    stage.kube.calls.clear()
    stage.kube.fail("replace", LEASES, Unavailable("down"), times=3)

    async def nothing():
        return

    async def enough():
        raise KeyboardInterrupt

    stage.acts = [nothing] * 6 + [enough]
    with pytest.raises(KeyboardInterrupt):
        await first.keep(stage.sleep)
    assert stage.pauses == [2.0] * 7
    assert [call.verb for call in stage.kube.calls] == ["replace"] * 6, "one call each, and none to read"
    first.check()


async def test_the_epoch_can_be_raised_above_what_workers_have_seen(stage):
    first = stage.operator("pod-a")
    await first.acquire(stage.sleep)
    await first.raise_above(7)
    assert first.epoch == stage.lease["leaseTransitions"] == 8
    await first.raise_above(3)
    assert first.epoch == 8


async def test_a_conflict_while_renewing_is_tried_once_more(stage):
    first = stage.operator("pod-a")
    await first.acquire(stage.sleep)
    stage.kube.fail("replace", LEASES, Conflict("changed"))
    await first.raise_above(7)
    assert first.epoch == 8


async def test_a_lease_that_is_deleted_is_made_again_with_a_higher_epoch(stage):
    first = stage.operator("pod-a")
    await first.acquire(stage.sleep)
    await first.raise_above(41)
    await stage.kube.delete(LEASES, "system", "release-operator")
    await first.raise_above(42)
    assert first.epoch == stage.lease["leaseTransitions"] == 43
    await stage.kube.delete(LEASES, "system", "release-operator")

    async def enough():
        raise KeyboardInterrupt

    stage.acts = [stage.nothing, enough]
    with pytest.raises(KeyboardInterrupt):
        await first.keep(stage.sleep)
    assert first.epoch == stage.lease["leaseTransitions"] == 44


async def test_a_lease_that_is_deleted_while_another_waits_does_not_fall_back(stage):
    first, second = stage.operator("pod-a"), stage.operator("pod-b")
    await first.acquire(stage.sleep)
    await first.raise_above(41)

    async def delete():
        await stage.kube.delete(LEASES, "system", "release-operator")

    stage.acts = [stage.nothing, delete]
    await second.acquire(stage.sleep)
    assert second.epoch == 43
    with pytest.raises(NotLeading, match="pod-b"):
        await first.raise_above(50)


async def test_who_does_not_turn_is_not_renewed_and_stops(stage):
    is_well = [True, False, False, False, False, False, False]
    first = stage.operator("pod-a", is_well=lambda: is_well.pop(0))
    await first.acquire(stage.sleep)
    with pytest.raises(NotLeading, match="renewed 12 s ago"):
        await first.keep(stage.sleep)
    assert not first.leads


async def test_a_process_that_was_stopped_for_a_minute_may_not_act_even_before_it_hears_of_another(stage):
    first = stage.operator("pod-a")
    await first.acquire(stage.sleep)
    stage.clock.step(60.0)
    with pytest.raises(NotLeading, match="renewed 60 s ago"):
        first.check()
    stage.kube.calls.clear()
    with pytest.raises(NotLeading):
        await first.raise_above(7)
    assert stage.kube.calls == []


async def test_a_renewal_counts_from_when_it_was_sent(stage):
    first = stage.operator("pod-a")
    await first.acquire(stage.sleep)
    replace = stage.kube.replace

    async def slowly(*args):
        stage.clock.step(60.0)
        return await replace(*args)

    stage.kube = SlowKube(slowly)
    first._kube = stage.kube
    await first.raise_above(1)
    with pytest.raises(NotLeading):
        first.check()


@dataclass
class SlowKube:
    """A server whose answer comes late."""

    replace: object


def test_the_clock_of_the_lease_goes_on_during_a_suspension():
    assert boot_time_s() >= time.monotonic() - 1.0


async def test_a_lease_that_is_not_there_may_have_been_deleted_so_the_epoch_counts_on_from_the_clock(stage):
    first = stage.operator()
    await first.acquire(stage.sleep)
    await first.raise_above(7)
    await stage.kube.delete(LEASES, "system", "release-operator")
    stage.clock.step(3600.0)
    second = stage.operator("other")
    await second.acquire(stage.sleep)
    assert second.epoch > first.epoch
