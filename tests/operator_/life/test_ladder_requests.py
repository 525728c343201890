"""Requests and the ladder: what runs or waits keeps a deployment awake, and no sleep ends a request that it meets."""

from __future__ import annotations

from dormouse_operator.model import WorkerState
from tests.operator_.ladders import LADDER, rungs, tell, until_due


async def test_without_word_of_one_gateway_nothing_goes_deeper_and_a_wake_still_comes_about(rig):
    await rig.serving(lifecycle=LADDER)
    tell(rig)
    rig.activities.expect("b:1")
    rig.clock.step(100_000)
    assert await rig.reconcile() is None
    assert rig.status["phase"] == "Active"
    rig.activities.drop("b:1")
    await rig.settle()
    assert rig.status["lifecycle"]["rung"] == "Zero", "it was silence all the time"
    rig.activities.expect("b:1")
    tell(rig, held=1)
    await rig.until_profiled()
    await rig.settle()
    assert rig.status["phase"] == "Active"


async def test_requests_that_run_or_are_held_keep_it_awake_and_wake_it(rig):
    await rig.serving(lifecycle=LADDER)
    tell(rig, in_flight=1, known_since_s=0.0)
    rig.clock.step(100_000)
    assert await rig.reconcile() == 600
    tell(rig)
    await until_due(rig)
    assert rig.status["phase"] == "Asleep"
    tell(rig, in_flight=1, held=1)
    await rig.settle()
    assert rig.status["phase"] == "Active", "also where the intent was lost"


async def test_a_request_that_comes_while_draining_cancels_the_sleep(rig):
    await rig.serving(lifecycle=LADDER, replicas=2)
    tell(rig)
    rig.clock.step(600)
    await rig.reconcile()
    rig.node.tick()
    assert rig.gate()["status"] == "False"
    rig.worker(1).request_counter += 1
    rig.worker(1).running_requests = 1
    await rig.settle()
    assert rig.worker(1).running_requests == 1, "it is not ended"
    assert {rig.worker(index).state for index in (0, 1)} == {WorkerState.READY}
    assert rig.gate()["status"] == "True"
    assert (rig.status["phase"], rig.status["lifecycle"]["rung"]) == ("Active", "Active")
    assert "sleep 1" not in rig.worker(0).commands
    assert "SleepRefused" not in str(rig.events)


async def test_a_request_at_the_instant_of_the_sleep_is_found_by_the_worker_and_is_no_failure(rig):
    await rig.serving(lifecycle=LADDER, replicas=2)
    tell(rig)
    rig.clock.step(600)
    await rig.reconcile()
    late = rig.worker(1)
    prepare = late.prepare_sleep

    def meet(epoch, *, level, abort, request_counter=None):
        """Take a request in, answer it, and only then hear of the sleep."""
        late.request_counter += 1
        prepare(epoch, level=level, abort=abort, request_counter=request_counter)

    rig.workers.workers[next(ip for ip, one in rig.workers.workers.items() if one is late)] = Racing(late, meet)
    await rig.settle()
    assert rig.errors == []
    assert rig.status["phase"] == "Active"
    assert "sleep 1" not in [*late.commands, *rig.worker(0).commands]
    assert rig.condition("Degraded")[:2] == ("False", "AsExpected")
    assert rungs(rig) == []


class Racing:
    """A worker to which a request comes between two looks of the operator."""

    def __init__(self, worker, prepare_sleep):
        self._worker = worker
        self.prepare_sleep = prepare_sleep

    def __getattr__(self, name):
        return getattr(self._worker, name)


async def test_no_request_is_ended_by_the_ladder_however_long_it_runs(rig):
    await rig.serving(lifecycle=LADDER)
    tell(rig)
    rig.worker().running_requests = 1  # past the gateways
    for _ in range(5):
        await until_due(rig)
    assert rig.worker().running_requests == 1
    assert rig.status["phase"] == "Active"
    assert rig.gate()["status"] == "True"
