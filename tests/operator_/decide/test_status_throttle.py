"""A status is written once a second at most, at once where somebody waits for it, and the last one always."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS
from dormouse_kube.errors import Forbidden
from dormouse_operator.decide import status_throttle
from dormouse_operator.decide.actions import ApplyService, CreatePod, InitializeCache, PutToSleep, WakeUp
from dormouse_operator.model import Pod, RecordedStatus
from dormouse_operator.parse import parse_status

POD = Pod(name="p", uid="u", index=0, revision="r", owner_uid="o")


def status(*, generation=1, ready="False", scheduled="False"):
    conditions = [
        {"type": "Ready", "status": ready, "reason": "x"},
        {"type": "Scheduled", "status": scheduled, "reason": "x"},
    ]
    return {"observedGeneration": generation, "conditions": conditions}


RECORDED = parse_status(status())


def test_a_new_spec_a_flip_of_ready_and_a_command_to_a_worker_are_waited_for():
    assert status_throttle.is_urgent(RecordedStatus(), status(), [])
    assert status_throttle.is_urgent(RECORDED, status(generation=2), [])
    assert status_throttle.is_urgent(RECORDED, status(ready="True"), [])
    assert status_throttle.is_urgent(RECORDED, status(scheduled="True"), [InitializeCache(POD, 1, 0)])
    assert not status_throttle.is_urgent(RECORDED, status(scheduled="True"), [ApplyService(), CreatePod(0)])


def test_an_engine_that_was_swapped_is_told_at_once_and_a_new_pod_with_all_else():
    known = parse_status(status() | {"pods": [{"name": "a", "uid": "a", "revision": "one"}]})
    same, other = {"name": "a", "uid": "a", "revision": "one"}, {"name": "b", "uid": "b", "revision": "two"}
    assert not status_throttle.is_urgent(known, status() | {"pods": [same, other]}, [])
    assert not status_throttle.is_urgent(known, status(), [])
    assert status_throttle.is_urgent(known, status() | {"pods": [{**same, "revision": "two"}]}, [])


def test_what_nobody_waits_for_is_put_off_until_a_second_after_the_last():
    after = status(scheduled="True")
    assert status_throttle.put_off_s(RECORDED, after, [], writes=(), now=10.0) == 0.0
    assert status_throttle.put_off_s(RECORDED, after, [], writes=(9.75,), now=10.0) == 0.75
    assert status_throttle.put_off_s(RECORDED, after, [], writes=(9.0,), now=10.0) == 0.0


def test_what_is_waited_for_may_follow_at_once_but_not_forever():
    after = status(ready="True")
    assert status_throttle.put_off_s(RECORDED, after, [], writes=(9.5, 9.75), now=10.0) == 0.0
    assert status_throttle.put_off_s(RECORDED, after, [], writes=(9.5, 9.6, 9.7, 9.8, 9.9), now=10.0) == 4.5


def test_a_wake_is_never_put_off():
    writes = (9.5, 9.6, 9.7, 9.8, 9.9)
    assert status_throttle.put_off_s(RECORDED, status(), [WakeUp((POD,))], writes=writes, now=10.0) == 0.0
    assert (
        status_throttle.put_off_s(
            RECORDED, status(), [PutToSleep((POD,), 1, must_abort=False)], writes=writes, now=10.0
        )
        == 4.5
    )


@given(st.lists(st.tuples(st.floats(0.0, 1.5), st.booleans()), max_size=60))
def test_over_any_time_there_is_no_more_than_one_in_a_second_and_a_burst(wishes):
    writes: list[float] = []
    now = 0.0
    for pause_s, is_urgent in wishes:
        now += pause_s
        after = status(ready="True") if is_urgent else status(scheduled="True")
        if status_throttle.put_off_s(RECORDED, after, [], writes=writes[-status_throttle.BURST :], now=now) == 0.0:
            writes.append(now)
    for begin, first in enumerate(writes):
        for end in range(begin, len(writes)):
            assert end - begin + 1 <= (writes[end] - first) / status_throttle.PERIOD_S + status_throttle.BURST


async def test_a_start_within_moments_writes_few_statuses_and_waits_for_none(rig):
    rig.pause_s = 0.0
    rig.apply()
    await rig.until_profiled()
    await rig.settle()
    written = [call for call in rig.kube.mutations() if call.verb == "patch_status"]
    assert len(written) <= status_throttle.BURST
    assert rig.status["phase"] == "Active"
    assert len(rig.kube.mutations()) <= 15


async def test_what_was_put_off_comes(rig):
    await rig.serving()
    rig.reconciler._written[rig.key] = (rig.seconds,) * status_throttle.BURST
    rig.pause_s = 0.0
    rig.apply(replicas=2)
    while (after_s := await rig.reconcile()) == 0.0:
        pass
    assert after_s == status_throttle.BURST * status_throttle.PERIOD_S
    assert rig.status["observedGeneration"] == 1
    rig.seconds += status_throttle.BURST * status_throttle.PERIOD_S
    await rig.settle()
    assert rig.status["observedGeneration"] == 2


async def test_a_promise_is_written_before_it_is_kept_even_where_that_has_to_wait(rig):
    rig.apply()
    await rig.until_profiled()
    rig.reconciler._written[rig.key] = (rig.seconds,) * status_throttle.BURST
    rig.pause_s = 0.0
    assert await rig.reconcile() == status_throttle.BURST * status_throttle.PERIOD_S
    assert rig.worker().commands == []


async def test_a_pass_over_an_old_copy_writes_nothing_and_comes_again(rig):
    await rig.serving()
    rig.pump.pump()
    rig.apply(replicas=2)
    rig.apply(replicas=1, lifecycle={"desiredState": "Asleep"})
    rig.kube.calls.clear()
    rig.cache.take(INFERENCE_DEPLOYMENTS, aged(rig))
    await rig.reconcile_blindly()
    assert rig.worker().commands == ["initialize_cache"], "what was ordered meanwhile is not known, and nothing is done"
    await rig.settle()
    assert rig.status["phase"] == "Asleep"


def aged(rig):
    """Return the object as it was before it changed, with another order in it: what a watch that lags would tell."""
    obj = rig.kube.peek(INFERENCE_DEPLOYMENTS, *rig.key)
    known = rig.cache.snapshot(rig.key).deployment
    between = int(known["metadata"]["resourceVersion"]) + 1
    assert between < int(obj["metadata"]["resourceVersion"])
    return {**known, "metadata": {**known["metadata"], "resourceVersion": str(between)}}


async def test_two_passes_over_an_old_copy_create_one_pod(rig):
    rig.apply()
    rig.pump.pump()
    await rig.reconcile_blindly()
    await rig.reconcile_blindly()
    created = [call for call in rig.kube.mutations() if call.plural == "pods"]
    assert len(created) == 1
    assert len(rig.pods) == 1


async def test_a_missing_right_is_told_to_the_conditions_and_recovers_by_itself(rig):
    words = 'pods is forbidden: User "x" cannot create resource "pods" in API group "" in the namespace "team"'
    rig.kube.fail("create", PODS, Forbidden(words, status=403))
    rig.apply()
    await rig.reconcile()
    assert rig.reconciler._refusals[rig.key].forbidden == words
    await rig.settle()
    assert rig.key not in rig.reconciler._refusals


async def test_an_admission_that_says_no_is_no_missing_right(rig):
    rig.kube.fail("create", PODS, Forbidden('pods "x" is forbidden: violates PodSecurity "restricted"', status=403))
    rig.apply()
    await rig.reconcile()
    refusals = rig.reconciler._refusals[rig.key]
    assert refusals.forbidden == ""
    assert "PodSecurity" in " ".join(refusals.told.values())


async def test_a_status_that_may_not_be_written_is_a_missing_right_too(rig):
    words = 'User "x" cannot patch resource "inferencedeployments/status"'
    rig.kube.fail("patch_status", INFERENCE_DEPLOYMENTS, Forbidden(words, status=403))
    rig.apply()
    await rig.reconcile()
    assert rig.reconciler._refusals[rig.key].forbidden == words
    await rig.settle()
    assert rig.key not in rig.reconciler._refusals
