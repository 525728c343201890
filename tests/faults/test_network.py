"""The network between operator and API server refuses or falls silent (toxiproxy). F3 and F6 of the fault matrix."""

from __future__ import annotations

import pytest

from tests.faults.operator_process import OperatorProcess
from tests.faults.world import World


async def has_tried(operator: OperatorProcess, times: int) -> bool:
    """Return whether kopf, which has to list everything before the lease is asked for, has tried so often in vain."""
    return f"Request attempt #{times} failed" in operator.text()


async def failed_calls(operator: OperatorProcess, count: int) -> bool:
    """Return whether so many calls of the running process got no answer."""
    return await operator.metric("dormouse_kube_requests_total", code="0") >= count


async def test_without_a_fault_a_deployment_serves_and_then_nothing_is_written(world: World) -> None:
    """What the other tests compare with."""
    async with world.operator(resync_seconds=1) as operator:
        await world.apply("a", replicas=2)
        await world.serves("a", replicas=2)
        await world.rests(operator)
        assert operator.exit_codes == []


@pytest.mark.slow  # an outage shorter than the lease is a matter of seconds: not on a machine that is busy
async def test_a_refused_api_server_is_waited_out_and_what_happened_meanwhile_is_done(world: World) -> None:
    """F3, an outage shorter than the lease: the process lives on, and the status that was true stays."""
    async with world.network() as (network, url), world.operator(url=url, resync_seconds=1) as operator:
        await world.apply("a")
        await world.serves("a")
        await network.refuse()
        await world.apply("a", replicas=2)
        await world.apply("b")
        await world.eventually(lambda: failed_calls(operator, 2))
        assert len(world.pods("a")) == 1
        assert world.pods("b") == []
        await network.accept()
        await world.serves("a", replicas=2)
        await world.serves("b")
        assert operator.exit_codes == []


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_an_outage_longer_than_the_lease_ends_the_operator_once_and_the_next_process_waits(world: World) -> None:
    """F3, about a minute: a leader that cannot renew must stop; it is started again and takes over when it can."""
    async with world.network() as (network, url), world.operator(url=url) as operator:
        await world.apply("a")
        await world.serves("a")
        epoch = await world.epoch()
        await network.refuse()
        await world.apply("a", replicas=2)
        await world.until(lambda: operator.exit_codes)
        await world.eventually(lambda: has_tried(operator, 10), timeout_s=120)
        await network.accept()
        await world.serves("a", replicas=2)
        assert operator.exit_codes == [1]
        assert await world.epoch() > epoch


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_network_that_falls_silent_without_closing_anything_is_noticed(world: World) -> None:
    """F6: no byte, no reset. The leader stops before another may start; once the network speaks, all is done."""
    async with world.network() as (network, url), world.operator(url=url) as operator:
        await world.apply("a")
        await world.serves("a")
        await network.fall_silent()
        await world.apply("b")
        await world.until(lambda: operator.exit_codes, timeout_s=90)
        assert world.pods("b") == []
        await network.speak()
        await world.serves("b", timeout_s=75)
        await world.serves("a")
