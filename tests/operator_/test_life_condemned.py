"""Pods whose workers take no command are named, and replaced one by one while the others serve."""

from datetime import datetime, timedelta

import pytest

from dormouse_operator.condemned import COUNTED_FROM, condemn
from dormouse_operator.model import Condemnation
from dormouse_operator.rollout.change import Change, change_of
from dormouse_operator.testing_nouns import NOW, a_deployment, a_pod, a_worker, observed
from tests.operator_.kit import passes, serving, uids

FAR = 2**63


async def test_a_worker_with_an_epoch_that_nobody_had_is_named_and_replaced_while_the_others_serve(rig):
    await rig.serving(replicas=2)
    [bad, good] = [rig.node.worker_of(name) for name in rig.pods]
    name = rig.pods[0]
    bad.epoch = FAR
    rig.node.blocks["2"] = 1000
    rig.apply(replicas=3)  # the newcomer reports less, so both get a command
    await passes(rig, 8, least=1)
    status, reason, message = rig.condition("Degraded")
    assert (status, reason) == ("True", "EpochImpossible")
    assert f"pod {name}" in message
    assert str(FAR) in message
    assert any(event.startswith("EpochImpossible") for event in rig.events)
    await passes(rig, 30, least=1)
    await rig.settle()
    assert len(serving(rig)) == len(rig.pods) == 3
    assert bad.pod_uid not in uids(rig)
    assert good.pod_uid in uids(rig)
    assert rig.condition("Degraded")[1] == "AsExpected"
    assert rig.leader.epoch == 1, "a worker's word leads nobody out of the lease's numbers"


@pytest.mark.parametrize(("strategy", "least"), [("Surge", 1), ("SleepSwap", 0)])
async def test_a_worker_that_is_alone_is_replaced_as_the_strategy_says(rig, strategy, least):
    await rig.serving(rollout={"strategy": strategy})
    first = rig.worker()
    first.epoch = FAR
    rig.apply(lifecycle={"desiredState": "Asleep"})
    await rig.reconcile()
    assert rig.condition("Degraded")[1] == "EpochImpossible"
    rig.apply(lifecycle={"desiredState": "Auto"})
    await passes(rig, 20, least=least)
    await rig.settle()
    assert rig.worker() is not first
    assert first.commands == ["initialize_cache"], "it is given no command in vain"
    assert rig.status["phase"] == "Active"


async def test_one_that_sleeps_is_replaced_and_its_successor_sleeps(rig):
    await rig.serving(lifecycle={"desiredState": "Asleep"})
    first = rig.worker()
    first.epoch = FAR
    await passes(rig, 20)
    await rig.settle()
    assert rig.worker() is not first
    assert rig.status["phase"] == "Asleep"


@pytest.mark.parametrize(
    ("epoch", "own", "now", "is_condemned"),
    [
        (1, 0, NOW, False),
        (5, 1, COUNTED_FROM, False),
        (int((NOW - COUNTED_FROM).total_seconds()), 1, NOW, False),
        (int((NOW - COUNTED_FROM).total_seconds()) + 2 * 86_400, 1, NOW, True),
        (70_000_000, 70_000_001, datetime.min.replace(tzinfo=NOW.tzinfo), False),  # our clock is wrong, the lease not
        (2**31 - 2, 2**31 - 10, NOW, False),
        (2**31 - 1, 2**31 - 10, NOW, True),  # none can be above it
        (2**64 - 1, 1, NOW + timedelta(days=40_000), True),
    ],
)
def test_epochs_are_impossible_above_what_any_leader_could_have(epoch, own, now, is_condemned):
    pod = a_pod()
    found = condemn([pod, a_pod(1)], {pod.name: a_worker(epoch=epoch)}, now=now, epoch=own)
    assert (pod.name in found) is is_condemned
    assert len(found) == is_condemned


def test_only_another_pod_helps_one_that_takes_no_command():
    pod = a_pod()
    seen = observed(None, deployment=a_deployment(), condemned={pod.name: Condemnation("Why", "words")})
    assert change_of(seen, pod) is Change.POD
