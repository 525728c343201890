"""A deployment that is scaled by its load, from the gateways' word to the pods, in virtual time."""

from __future__ import annotations

import pytest

from dormouse_kube.api import EVENTS, INFERENCE_DEPLOYMENTS
from dormouse_kube.errors import Conflict, Forbidden, Unavailable
from dormouse_operator.act.scaler import PERIOD_S
from dormouse_operator.errors import NotLeading
from dormouse_operator.model import Contest, WorkerState
from tests.operator_.ladders import tell

SCALING = {"minReplicas": 1, "maxReplicas": 4, "targetOutstandingPerReplica": 10}


async def go_on(rig, seconds):
    """Let time pass: the scaler looks, cluster and operator act, new workers load."""
    for _ in range(int(seconds / PERIOD_S)):
        rig.clock.step(PERIOD_S)
        await rig.scaler.step()
        await rig.until_profiled()
        await rig.settle()


def scales(rig):
    return [call for call in rig.kube.calls if call.verb == "patch_scale"]


def replicas(rig):
    return rig.kube.peek(INFERENCE_DEPLOYMENTS, *rig.key)["spec"]["replicas"]


async def test_load_brings_replicas_that_serve_and_idleness_takes_them_away_after_the_window(rig):
    await rig.serving(scaling=SCALING, replicas=1)
    tell(rig, in_flight=35)
    await go_on(rig, 30)
    assert (replicas(rig), len(rig.pods)) == (4, 4)
    assert rig.status["readyReplicas"] == 4
    assert all(worker.state is WorkerState.READY for worker in rig.workers.workers.values())
    tell(rig, in_flight=0)
    await go_on(rig, 285)
    assert replicas(rig) == 4
    await go_on(rig, 30)
    assert (replicas(rig), len(rig.pods)) == (1, 1)
    assert len(scales(rig)) == 2
    assert repr(rig.scaler) == "Scaler(team/tiny=1)"


async def test_every_change_is_told_once_with_its_reason(rig):
    await rig.serving(scaling=SCALING, replicas=1)
    tell(rig, in_flight=25)
    await go_on(rig, 60)
    assert [event for event in rig.events if event.startswith("Scaled")] == [
        "Scaled: replicas 1 → 3: 25 unfinished requests, 10 per replica wanted"
    ]


async def test_nothing_is_written_while_the_load_asks_for_what_there_is(rig):
    await rig.serving(scaling=SCALING, replicas=2)
    tell(rig, in_flight=20)
    before = rig.kube.version
    await go_on(rig, 900)
    assert scales(rig) == []
    assert rig.kube.version == before


async def test_a_lost_gateway_changes_nothing_however_long_it_is_lost(rig):
    await rig.serving(scaling=SCALING, replicas=3, lifecycle={"level1AfterSeconds": None})
    tell(rig, in_flight=0)
    rig.activities.expect("b:1")
    await go_on(rig, 1200)
    assert (replicas(rig), scales(rig)) == (3, [])
    rig.activities.drop("b:1")
    await go_on(rig, 285)
    assert replicas(rig) == 3, "what happened meanwhile is not known either"
    await go_on(rig, 30)
    assert replicas(rig) == 1


async def test_bounds_are_kept_without_any_gateway(rig):
    await rig.serving(scaling=SCALING, replicas=1)
    rig.apply(replicas=9)
    await rig.reconcile()
    await rig.scaler.step()
    assert replicas(rig) == 4
    rig.apply(scaling={**SCALING, "minReplicas": 2, "maxReplicas": 2})
    await rig.reconcile()
    await rig.scaler.step()
    assert replicas(rig) == 2


@pytest.mark.parametrize("spec", [{"scaling": None}, {"replicas": 0}, {"lifecycle": {"desiredState": "Asleep"}}])
async def test_whoever_is_not_to_be_scaled_is_left_alone(rig, spec):
    await rig.serving(scaling=SCALING, replicas=2)
    tell(rig, in_flight=100)
    rig.apply(**spec)
    await rig.settle()
    await go_on(rig, 60)
    assert scales(rig) == []


async def test_a_change_of_scaling_restarts_nothing(rig):
    await rig.serving(scaling=SCALING, replicas=2)
    pods = rig.pods
    rig.apply(scaling={**SCALING, "targetKvUsage": 0.5})
    await rig.settle()
    assert rig.pods == pods
    tell(rig, in_flight=0, awake_workers=2, mean_kv_cache_usage=0.9)
    await go_on(rig, 15)
    assert replicas(rig) == 4


async def test_an_operator_that_does_not_lead_writes_nothing(rig):
    await rig.serving(scaling=SCALING, replicas=1)
    tell(rig, in_flight=100)
    rig.leader.leads = False
    with pytest.raises(NotLeading):
        await rig.scaler.step()
    assert scales(rig) == []


@pytest.mark.parametrize("error", [Unavailable("down"), Forbidden("may not patch inferencedeployments/scale")])
async def test_a_write_that_fails_comes_again(rig, error, caplog):
    await rig.serving(scaling=SCALING, replicas=1)
    tell(rig, in_flight=20)
    rig.kube.fail("patch_scale", INFERENCE_DEPLOYMENTS, error)
    await rig.scaler.step()
    assert replicas(rig) == 1
    assert str(error) in caplog.text
    await rig.scaler.step()
    assert replicas(rig) == 2


async def test_an_event_that_can_not_be_written_costs_nothing_else(rig, caplog):
    await rig.serving(scaling=SCALING, replicas=1)
    tell(rig, in_flight=20)
    rig.kube.fail("create", EVENTS, Unavailable("down"))
    await rig.scaler.step()
    assert replicas(rig) == 2
    assert "Scaled was not written" in caplog.text


async def test_another_object_under_the_same_name_is_not_scaled_by_what_the_first_one_had(rig):
    await rig.serving(scaling=SCALING, replicas=1)
    tell(rig, in_flight=40)
    await rig.kube.delete(INFERENCE_DEPLOYMENTS, *rig.key)
    rig.apply(replicas=1)
    await rig.scaler.step()
    assert (replicas(rig), scales(rig)) == (1, [])
    await rig.reconcile()
    assert repr(rig.scaler) == "Scaler()", "the new one is not to be scaled"


async def test_one_that_is_gone_is_not_scaled(rig):
    await rig.serving(scaling=SCALING, replicas=1)
    tell(rig, in_flight=40)
    await rig.kube.delete(INFERENCE_DEPLOYMENTS, *rig.key)
    await rig.scaler.step()
    assert scales(rig) == []
    await rig.reconcile()
    assert repr(rig.scaler) == "Scaler()"


async def test_replicas_that_somebody_else_just_wrote_are_looked_at_before_they_are_changed(rig):
    await rig.serving(scaling=SCALING, replicas=1)
    tell(rig, in_flight=40)
    rig.apply(replicas=0)
    await rig.scaler.step()
    assert (replicas(rig), scales(rig)) == (0, []), "off is off, though it was not observed yet"


async def test_another_autoscaler_beside_ours_is_told_and_forgotten_when_it_is_gone(rig):
    await rig.serving(scaling=SCALING, replicas=1)
    tell(rig, in_flight=35)
    await go_on(rig, 30)
    for wanted in (2, 3):  # a person who tries
        rig.apply(replicas=wanted)
        await rig.reconcile()
        await rig.reconcile()
        assert rig.condition("Degraded")[0] == "False"
    await go_on(rig, 15)
    assert replicas(rig) == 4, "ours is no change of somebody else's"
    rig.apply(replicas=2)
    rig.marked.clear()
    await rig.reconcile()
    assert rig.marked == [rig.key], "what was just seen counts in the next look"
    await rig.reconcile()
    assert rig.condition("Degraded")[:2] == ("True", "ReplicasContested")
    assert "3 times in 15 minutes" in rig.condition("Degraded")[2]
    await go_on(rig, 870)
    assert rig.condition("Degraded")[1] == "ReplicasContested"
    rig.marked.clear()
    await go_on(rig, 30)
    assert rig.condition("Degraded")[0] == "False"
    assert rig.key in rig.marked


async def test_an_observation_from_before_our_own_write_is_no_rival(rig):
    await rig.serving(scaling=SCALING, replicas=1)
    old = rig.told.situation
    tell(rig, in_flight=40)
    await rig.scaler.step()
    rig.scaler.saw(old)
    assert (replicas(rig), rig.scaler.contest(rig.key)) == (4, Contest())


async def test_a_write_that_crosses_another_one_comes_again(rig):
    await rig.serving(scaling=SCALING, replicas=1)
    tell(rig, in_flight=40)
    rig.kube.fail("patch_scale", INFERENCE_DEPLOYMENTS, Conflict("the object has been modified"))
    await rig.scaler.step()
    assert replicas(rig) == 1
    await rig.scaler.step()
    assert replicas(rig) == 4


async def test_a_spec_that_can_not_be_read_is_not_scaled(rig):
    await rig.serving(scaling=SCALING, replicas=1)
    rig.apply(scaling={"maxReplicas": 0})
    await rig.reconcile()
    assert repr(rig.scaler) == "Scaler()"
    assert rig.condition("Accepted")[:2] == ("False", "InvalidSpec")
    assert rig.condition("Ready")[:2] == ("False", "InvalidSpec")
    assert rig.condition("Degraded")[:2] == ("True", "InvalidSpec")


async def test_an_operator_that_starts_anew_takes_nothing_away_at_once(rig):
    await rig.serving(scaling=SCALING, replicas=3)
    tell(rig, in_flight=0)
    await go_on(rig, 290)
    rig.restart_operator()
    await rig.settle()
    tell(rig, in_flight=0)
    await go_on(rig, 285)
    assert replicas(rig) == 3
    await go_on(rig, 30)
    assert replicas(rig) == 1


async def test_the_scaler_looks_every_period(rig):
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            raise NotLeading("enough")

    with pytest.raises(NotLeading):
        await rig.scaler.run(sleep)
    assert pauses == [PERIOD_S] * 3
