"""Two who write replicas in turn, where spec.scaling is not set, are told by their names; in virtual time."""

from __future__ import annotations

from dormouse_kube.api import INFERENCE_DEPLOYMENTS
from dormouse_operator.act.replica_writers import LATELY_S
from tests.operator_.kit import managed

AUTOSCALER = "kube-controller-manager"


async def write(rig, manager, replicas):
    """Have somebody write the replicas, as the API server notes it, and look twice: seen, then told."""

    def change(stored):
        stored["spec"]["replicas"] = replicas
        stored["metadata"]["managedFields"] = [{"manager": manager, **managed("f:replicas")}]

    rig.kube.edit(INFERENCE_DEPLOYMENTS, *rig.key, change)
    await rig.reconcile()
    await rig.reconcile()


async def quarrel(rig, times):
    for _ in range(times):
        await write(rig, "kubectl", 3)
        await write(rig, AUTOSCALER, 1)


async def test_an_autoscaler_and_a_person_are_named_when_the_person_does_not_give_up(rig):
    await rig.serving(replicas=1)
    await write(rig, AUTOSCALER, 2)
    await quarrel(rig, 2)
    assert rig.condition("Degraded")[0] == "False", "a person tried twice"
    await write(rig, "kubectl", 3)
    status, reason, message = rig.condition("Degraded")
    assert (status, reason) == ("True", "ReplicasContested")
    assert f"{AUTOSCALER} and kubectl wrote spec.replicas over each other 5 times in 15 minutes" in message
    assert "spec.scaling" not in message


async def test_it_is_over_a_quarter_of_an_hour_later(rig):
    await rig.serving(replicas=1)
    await quarrel(rig, 4)
    assert rig.condition("Degraded")[1] == "ReplicasContested"
    rig.clock.step(LATELY_S)
    rig.marked.clear()
    await rig.scaler.step()
    assert rig.marked == [rig.key], "nothing else would have it looked at"
    await rig.reconcile()
    assert rig.condition("Degraded")[0] == "False"


async def test_an_autoscaler_alone_may_write_as_often_as_it_likes(rig):
    await rig.serving(replicas=1)
    for replicas in (2, 1, 3, 2, 1, 4):
        await write(rig, AUTOSCALER, replicas)
    assert rig.condition("Degraded")[0] == "False"


async def test_who_applies_the_number_that_stands_takes_nothing_from_anybody(rig):
    await rig.serving(replicas=1)
    for number in range(8):
        lifecycle = {"holdTimeoutSeconds": 60 + number}
        rig.kube.edit(
            INFERENCE_DEPLOYMENTS, *rig.key, lambda stored, new=lifecycle: stored["spec"].update(lifecycle=new)
        )
        await write(rig, "argocd" if number % 2 else AUTOSCALER, 1)
    assert rig.condition("Degraded")[0] == "False"


async def test_another_object_of_the_name_and_one_that_the_operator_scales_begin_anew(rig):
    await rig.serving(replicas=1)
    await quarrel(rig, 4)
    assert rig.scaler.contest(rig.key).num_writes == 7
    rig.apply(scaling={"minReplicas": 1, "maxReplicas": 4})
    await rig.reconcile()
    rig.apply(scaling=None)
    await rig.reconcile()
    assert rig.scaler.contest(rig.key).num_writes == 0
    await quarrel(rig, 4)
    await rig.kube.delete(INFERENCE_DEPLOYMENTS, *rig.key)
    rig.apply(replicas=1)
    await rig.reconcile()
    assert rig.scaler.contest(rig.key).num_writes == 0
