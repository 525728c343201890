"""Two operators, one of which acts. F9 of the fault matrix."""

from __future__ import annotations

import pytest

from dormouse_kube.api import LEASES
from tests.faults.operator_process import OperatorProcess
from tests.faults.world import World

LEASE = "dormouse-operator"


async def test_a_lease_that_is_deleted_costs_no_command_and_the_epoch_still_rises(world: World) -> None:
    """Workers refuse older epochs, so a lease that begins anew must not begin below them."""
    async with world.operator() as operator:
        await world.apply("a", replicas=2)
        await world.serves("a", replicas=2)
        seen = max(worker.epoch for worker in world.kubelet.workers.values())
        await world.kube.delete(LEASES, world.namespace, LEASE)

        async def is_back() -> bool:
            return await world.kube.get(LEASES, world.namespace, LEASE) is not None

        await world.eventually(is_back)
        await world.apply("a", replicas=2, lifecycle={"desiredState": "Asleep"})
        await world.until(lambda: world.condition("a", "Asleep").get("status") == "True")
        assert all(worker.epoch > seen for worker in world.kubelet.workers.values())
        assert await world.epoch() > seen
        assert operator.exit_codes == []


async def test_a_lease_that_is_deleted_while_nobody_leads_does_not_begin_below_what_workers_have_seen(
    world: World,
) -> None:
    """The next process remembers nothing, the workers do."""
    async with world.operator():
        await world.apply("a")
        await world.serves("a")
    seen = max(worker.epoch for worker in world.kubelet.workers.values())
    await world.kube.delete(LEASES, world.namespace, LEASE)
    async with world.operator():
        await world.apply("a", lifecycle={"desiredState": "Asleep"})
        await world.until(lambda: world.condition("a", "Asleep").get("status") == "True")
        assert await world.epoch() > seen


@pytest.mark.slow  # it measures how long a hand-over takes
async def test_a_leader_that_ends_gracefully_hands_over_at_once(world: World) -> None:
    """SIGTERM: the lease is given back, and the other one acts without waiting for it to run out."""
    async with world.operator("operator-a") as first:
        await world.apply("a")
        await world.serves("a")
        async with world.operator("operator-b", log_level="INFO") as second:
            await world.eventually(lambda: waits(second))
            first.retire()
            first.terminate()
            await world.until(lambda: first.exit_codes)
            await world.apply("b")
            await world.serves("b", timeout_s=12)
            assert first.exit_codes == [0]
            assert await world.holder() == "operator-b"


async def waits(operator: OperatorProcess) -> bool:
    """Return whether an operator has looked at a lease that another one holds."""
    return await operator.metric("dormouse_kube_requests_total", resource="leases", code="200") >= 2


@pytest.mark.slow
async def test_a_leader_that_is_killed_is_replaced_when_its_lease_has_run_out(world: World) -> None:
    """SIGKILL: nobody gives the lease back; the other one sees it unchanged for its whole duration."""
    async with world.operator("operator-a") as first, world.operator("operator-b") as second:
        await world.eventually(world.holder)
        leader = first if await world.holder() == "operator-a" else second
        await world.apply("a")
        await world.serves("a")
        epoch = await world.epoch()
        leader.retire()
        leader.kill()
        await world.until(lambda: leader.exit_codes)
        await world.apply("b")
        await world.serves("b")
        assert await world.epoch() > epoch
        await world.serves("a")


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_leader_that_was_frozen_writes_nothing_when_it_thaws(world: World) -> None:
    """SIGSTOP until another leads, with work waiting for it; then SIGCONT: it must find out before it writes."""
    async with world.operator("operator-a") as first:
        await world.apply("a")
        await world.serves("a")
        await world.rests(first)
        first.pause()
        async with world.operator("operator-b"):
            await world.apply("a", replicas=2)
            await world.serves("a", replicas=2)
            assert await world.holder() == "operator-b"
            before = world.writes(user="operator-a")
            await world.apply("a", replicas=1)
            first.retire()
            first.resume()
            await world.until(lambda: first.exit_codes)
            await world.serves("a", replicas=1)
            assert world.writes(user="operator-a") == before
            assert await world.holder() == "operator-b"
            epochs = {worker.epoch for worker in world.kubelet.workers.values()}
            assert max(epochs) <= await world.epoch()
