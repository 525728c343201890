"""Several workers prepare before any of them commits; a refusal changes nobody."""

from __future__ import annotations

import pytest

from dormouse_operator.act.two_phase import TwoPhase
from dormouse_operator.errors import GroupRefused, RequestCameIn, WorkerRefused
from dormouse_operator.model import WorkerState
from dormouse_operator.testing.fake_worker import FakeWorker
from dormouse_operator.testing.nouns import a_pod
from dormouse_operator.testing.workers import FakeWorkers

PODS = (a_pod(0), a_pod(1))
SHORT = WorkerRefused("RESOURCE_EXHAUSTED: memory is short")


@pytest.fixture
def workers() -> list[FakeWorker]:
    return [FakeWorker(pod.uid, pod.revision, state=WorkerState.READY, allocated=10) for pod in PODS]


@pytest.fixture
def fakes(workers) -> FakeWorkers:
    return FakeWorkers(dict(zip((pod.ip for pod in PODS), workers, strict=True)))


@pytest.fixture
def two_phase(fakes) -> TwoPhase:
    return TwoPhase(fakes)


def states(workers):
    """Return the state of each."""
    return [worker.state for worker in workers]


async def test_all_sleep_and_all_wake(two_phase, workers):
    await two_phase.put_to_sleep(PODS, 2, epoch=1, abort=False)
    assert [(worker.state, worker.sleep_level) for worker in workers] == [(WorkerState.ASLEEP, 2)] * 2
    await two_phase.wake_up(PODS, epoch=1)
    assert [(worker.state, worker.allocated) for worker in workers] == [(WorkerState.READY, 10)] * 2


async def test_who_refuses_to_prepare_keeps_all_awake_and_is_named(two_phase, workers):
    workers[1].refuse_next = [SHORT]
    with pytest.raises(GroupRefused) as refused:
        await two_phase.put_to_sleep(PODS, 1, epoch=1, abort=False)
    assert refused.value.refusals == {PODS[1].name: str(SHORT)}
    assert str(refused.value) == f"pod {PODS[1].name}: {SHORT}"
    assert states(workers) == [WorkerState.READY] * 2
    assert workers[0].commands == ["prepare_sleep", "wake_up"]


async def test_requests_that_run_are_ended_only_if_told_so(two_phase, workers):
    workers[0].running_requests = 1
    with pytest.raises(GroupRefused, match="1 requests"):
        await two_phase.put_to_sleep(PODS, 1, epoch=1, abort=False)
    await two_phase.put_to_sleep(PODS, 1, epoch=1, abort=True)
    assert states(workers) == [WorkerState.ASLEEP] * 2


async def test_a_sleeper_that_was_to_sleep_deeper_stays_as_it_was_if_another_refuses(two_phase, workers):
    workers[0].sleep(1, level=1, abort=False)
    workers[1].refuse_next = [SHORT]
    with pytest.raises(GroupRefused):
        await two_phase.put_to_sleep(PODS, 2, epoch=1, abort=False)
    assert (workers[0].state, workers[0].sleep_level) == (WorkerState.ASLEEP, 1)


async def test_a_wake_that_one_can_not_follow_wakes_nobody_and_gives_back_what_was_reserved(two_phase, workers):
    await two_phase.put_to_sleep(PODS, 1, epoch=1, abort=False)
    workers[1].missing_bytes = 2**30
    with pytest.raises(GroupRefused, match=r"1\.00 GiB of memory are missing"):
        await two_phase.wake_up(PODS, epoch=1)
    assert states(workers) == [WorkerState.ASLEEP] * 2
    assert workers[0].commands[-2:] == ["prepare_wake_up", "sleep 1"]


async def test_a_commit_that_fails_is_told_and_the_others_go_on(two_phase, workers):
    class Stubborn(FakeWorker):
        def sleep(self, *_, **__):
            raise SHORT

    stubborn = Stubborn(PODS[1].uid, "x", state=WorkerState.READY)
    two_phase = TwoPhase(FakeWorkers({PODS[0].ip: workers[0], PODS[1].ip: stubborn}))
    with pytest.raises(GroupRefused, match="memory is short"):
        await two_phase.put_to_sleep(PODS, 1, epoch=1, abort=False)
    assert workers[0].state is WorkerState.ASLEEP


async def test_who_is_gone_when_a_preparation_is_taken_back_does_not_hide_the_refusal(two_phase, workers, fakes):
    class Leaving(FakeWorker):
        def prepare_sleep(self, *_, **__):
            fakes.workers.pop(PODS[0].ip)

    fakes.workers[PODS[0].ip] = Leaving(PODS[0].uid, "x", state=WorkerState.READY)
    workers[1].refuse_next = [SHORT]
    with pytest.raises(GroupRefused) as refused:
        await two_phase.put_to_sleep(PODS, 1, epoch=1, abort=False)
    assert list(refused.value.refusals) == [PODS[1].name]


async def test_what_is_no_refusal_is_not_hidden(fakes):
    class Broken(FakeWorker):
        def prepare_sleep(self, *_, **__):
            raise ZeroDivisionError

    fakes.workers[PODS[0].ip] = Broken(PODS[0].uid, "x")
    with pytest.raises(ZeroDivisionError):
        await TwoPhase(fakes).put_to_sleep(PODS, 1, epoch=1, abort=False)


async def test_a_request_that_came_in_since_keeps_all_awake_and_is_told_apart_from_a_refusal(two_phase, workers):
    workers[1].request_counter = 8
    counters = {PODS[0].name: 0, PODS[1].name: 7}
    with pytest.raises(RequestCameIn, match="accepted 8 requests"):
        await two_phase.put_to_sleep(PODS, 1, epoch=1, abort=False, counters=counters)
    assert states(workers) == [WorkerState.READY] * 2
    workers[1].refuse_next = [SHORT]
    with pytest.raises(GroupRefused, match="memory is short"):
        await two_phase.put_to_sleep(PODS, 1, epoch=1, abort=False, counters={**counters, PODS[1].name: 8})
