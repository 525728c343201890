"""A node that falls silent: its pods are replaced elsewhere, and what cannot end is named."""

import pytest

from dormouse_kube.api import PODS
from dormouse_operator.manifests import WorkerDefaults, pod_manifest
from dormouse_operator.model import Placement
from dormouse_operator.testing.nouns import a_deployment

BY_TAINT = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
EVICTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}


async def end(rig, name, disruption):
    """Delete a pod as the control plane does, with the reason in its status."""
    rig.kube.edit(PODS, "team", name, lambda pod: pod["status"]["conditions"].append(disruption))
    await rig.kube.delete(PODS, "team", name)


async def test_a_pod_that_is_deleted_for_its_lost_node_is_replaced_under_another_name(rig):
    await rig.serving(replicas=2)
    lost, other = rig.pods
    rig.node.lose(lost)
    await end(rig, lost, BY_TAINT)
    await rig.until_profiled()
    await rig.settle()
    assert set(rig.pods) == {lost, other, f"{lost}-1"}
    assert (rig.status["phase"], rig.status["replicas"], rig.status["readyReplicas"]) == ("Active", 2, 2)


async def test_a_pod_that_ends_on_a_node_that_lives_keeps_its_name_until_it_is_gone(rig):
    await rig.serving()
    [pod] = rig.pods
    rig.node.lost.add(pod)  # it takes its time, its worker is there
    await end(rig, pod, EVICTED)
    await rig.settle()
    assert rig.pods == [pod]
    assert rig.condition("Scheduled") == ("False", "PodsMissing", f"0 of 1 pods exist; pod {pod} is still ending")


async def test_a_pod_that_does_not_end_in_time_is_named_and_replaced(rig):
    await rig.serving()
    [pod] = rig.pods
    rig.node.lose(pod)
    await rig.kube.delete(PODS, "team", pod)
    await rig.settle()
    assert rig.condition("Degraded")[1] == "AsExpected"
    assert await rig.reconcile() == pytest.approx(60)
    rig.clock.step(60)
    await rig.until_profiled()
    await rig.settle()
    status, reason, message = rig.condition("Degraded")
    assert (status, reason) == ("True", "PodStuck")
    assert f"pod {pod} was to be gone by 2026-01-01T00:00:00Z" in message
    assert "out-of-service" in message
    assert rig.status["phase"] == "Active"


async def test_when_the_node_is_back_and_ends_the_pod_nothing_changes_any_more(rig):
    await rig.serving()
    [pod] = rig.pods
    rig.node.lose(pod)
    await end(rig, pod, BY_TAINT)
    await rig.until_profiled()
    await rig.settle()
    rig.node.lost.clear()
    await rig.settle()
    assert rig.pods == [f"{pod}-1"]
    assert rig.status["phase"] == "Active"


def tolerations(*own):
    """Return the tolerations of a pod whose template has some."""
    template = {"spec": {"tolerations": list(own)}} if own else {}
    deployment = a_deployment(placement=Placement(template=template))
    defaults = WorkerDefaults("Always", "a", "b", node_loss_s=7)
    return pod_manifest(deployment, image="worker:1", index=0, defaults=defaults)["spec"]["tolerations"]


LOSS = [
    {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 7}
    for name in ("not-ready", "unreachable")
]


def test_a_pod_leaves_a_lost_node_after_the_operator_s_time():
    assert tolerations() == LOSS


def test_tolerations_of_the_template_stand_beside_it():
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert tolerations(gpu) == [gpu, *LOSS]


@pytest.mark.parametrize("everything", [{"operator": "Exists"}, {"operator": "Exists", "effect": "NoExecute"}])
def test_a_template_that_tolerates_everything_is_left_as_it_is(everything):
    assert tolerations(everything) == [everything]


def test_a_template_that_names_the_taint_decides_about_it():
    own = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
    assert tolerations(own) == [own, LOSS[0]]
