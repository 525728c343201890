"""A write that the API server refuses, with whatever status, is told with the object's name in the server's words."""

import pytest

from dormouse_kube.api import DISRUPTION_BUDGETS, INFERENCE_DEPLOYMENTS, PODS, SERVICES
from dormouse_kube.errors import Conflict, Forbidden, KubeError, NotFound, Unavailable
from dormouse_operator.observe.refusals import MAX_WORDS, STALE_TIMES

UNKNOWN_FIELD = "failed to create typed patch object (team/tiny; /v1, Kind=Pod): .spec.nodeSelectr: field not declared"


def internal(words):
    return Unavailable(words, status=500, reason="InternalError")


async def passes(rig, number):
    for _ in range(number):
        await rig.reconcile()


async def test_a_field_that_the_server_does_not_know_is_told_though_it_answers_an_internal_error(rig):
    rig.kube.fail("create", PODS, internal(UNKNOWN_FIELD), times=2)
    rig.apply()
    await passes(rig, 3)
    status, reason, message = rig.condition("Scheduled")
    assert (status, reason) == ("False", "PodRejected")
    assert message.startswith("pod tiny-")
    assert message.endswith(UNKNOWN_FIELD)
    assert rig.condition("Degraded")[:2] == ("True", "PodRejected")
    assert "nodeSelectr" in rig.condition("Degraded")[2]


async def test_it_goes_away_when_the_write_succeeds(rig):
    rig.kube.fail("create", PODS, internal(UNKNOWN_FIELD), times=2)
    rig.apply()
    await passes(rig, 3)
    await rig.until_profiled()
    await rig.settle()
    assert rig.condition("Scheduled")[0] == "True"
    assert rig.condition("Degraded")[0] == "False"
    assert rig.status["phase"] == "Active"


async def test_trouble_that_comes_once_is_not_told(rig):
    rig.kube.fail("create", PODS, internal("etcdserver: leader changed"))
    rig.apply()
    await passes(rig, 2)
    assert rig.condition("Scheduled")[1] != "PodRejected"


async def test_trouble_in_other_words_each_time_is_not_told(rig):
    for number in range(3):
        rig.kube.fail("create", PODS, internal(f"request {number} was lost"))
    rig.apply()
    await passes(rig, 4)
    assert rig.condition("Degraded")[0] == "False"


@pytest.mark.parametrize("status", [0, 429])
async def test_no_answer_and_a_server_that_is_too_busy_are_no_refusals(rig, status):
    rig.kube.fail("create", PODS, Unavailable("not now", status=status), times=4)
    rig.apply()
    await passes(rig, 4)
    assert rig.condition("Scheduled")[1] == "PodsMissing"


@pytest.mark.parametrize("error", [internal("no such field"), KubeError("no such field", status=415)])
async def test_a_refused_budget_is_named(rig, error):
    rig.kube.fail("apply", DISRUPTION_BUDGETS, error, times=2)
    rig.apply(replicas=2)
    await passes(rig, 3)
    assert rig.condition("Scheduled") == ("False", "ChildRejected", "PodDisruptionBudget tiny: no such field")


async def test_a_service_is_told_of_when_no_pod_is_wanted(rig):
    rig.kube.fail("apply", SERVICES, internal("a webhook is down"), times=2)
    rig.apply(lifecycle={"desiredState": "Zero"})
    await passes(rig, 3)
    assert rig.condition("Degraded") == ("True", "ChildRejected", "Service tiny: a webhook is down")


@pytest.mark.parametrize("error", [NotFound("no such kind", status=404), Conflict("it changed", status=409)])
async def test_what_a_late_watch_brings_about_is_told_only_when_it_lasts(rig, error):
    rig.kube.fail("apply", SERVICES, error, times=STALE_TIMES)
    rig.apply()
    await passes(rig, STALE_TIMES)
    assert rig.condition("Degraded")[0] == "False"
    await rig.reconcile()
    assert rig.condition("Degraded") == ("True", "ChildRejected", f"Service tiny: {error}")


async def test_a_gate_that_can_not_be_opened_is_no_refusal_of_the_worker(rig):
    rig.apply()
    await rig.until_profiled()
    rig.kube.fail("apply", PODS, Forbidden("a policy says no"), times=3)
    for _ in range(6):
        rig.node.tick()
        await rig.reconcile()
        if rig.condition("Degraded")[0] == "True":
            break
    assert rig.condition("Degraded") == ("True", "ChildRejected", f"Pod {rig.pods[0]}: a policy says no")
    assert rig.condition("CacheAllocated")[1] != "AllocationRefused"


QUOTA = "is forbidden: exceeded quota: compute, requested: pods=1, used: pods=4, limited: pods=4"


async def test_a_pod_for_which_a_quota_has_no_room_is_told_in_parts_until_it_has(rig):
    rig.kube.fail("create", PODS, Forbidden(f'pods "tiny-a" {QUOTA}'), times=2)
    rig.apply()
    await passes(rig, 2)
    status, reason, message = rig.condition("Scheduled")
    assert (status, reason) == ("False", "QuotaExceeded")
    assert message.startswith("pod tiny-")
    assert message.endswith(": ResourceQuota compute: pods 1 asked for, 4 of 4 used")
    assert rig.condition("Degraded") == ("True", reason, message)
    await rig.until_profiled()
    await rig.settle()
    assert rig.condition("Degraded")[0] == "False"


async def test_another_object_for_which_there_is_no_room_is_told_alike(rig):
    rig.kube.fail("apply", SERVICES, Forbidden(f'services "tiny" {QUOTA.replace("pods", "services")}'))
    rig.apply()
    await passes(rig, 2)
    words = "Service tiny: ResourceQuota compute: services 1 asked for, 4 of 4 used"
    assert rig.condition("Scheduled") == ("False", "QuotaExceeded", words)


async def test_words_without_end_are_cut(rig):
    rig.kube.fail("create", PODS, internal("x" * 10 * MAX_WORDS), times=2)
    rig.apply()
    await passes(rig, 3)
    assert len(rig.condition("Scheduled")[2]) < MAX_WORDS + 100
    assert rig.kube.peek(INFERENCE_DEPLOYMENTS, *rig.key)
