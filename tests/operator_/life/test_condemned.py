"""Pods whose workers take no command are named, and replaced one by one while the others serve."""

from datetime import datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dormouse_api.names import LABEL_REVISION
from dormouse_kube.api import PODS
from dormouse_operator.decide.condemned import COUNTED_FROM, by_epoch, first_epoch
from dormouse_operator.decide.rollout.change import Change, change_of
from dormouse_operator.model import Condemnation
from dormouse_operator.parse import OPERATOR_KEY, parse_pod
from dormouse_operator.testing.nouns import NOW, a_deployment, a_pod, a_situation, a_worker
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
        (int((NOW - COUNTED_FROM).total_seconds()) + 86_400, 1, NOW, True),
        (2**31 - 10, 2**31 - 10, NOW, False),
        (2**31 - 9, 2**31 - 10, NOW, True),  # nothing is added to our own
        (2**31 - 1, 2**31 - 10, NOW, True),  # none can be above it
        (2**64 - 1, 1, NOW + timedelta(days=40_000), True),
    ],
)
def test_epochs_are_impossible_above_what_any_leader_could_have(epoch, own, now, is_condemned):
    found = by_epoch({"one": a_worker(epoch=epoch), "other": a_worker()}, now=now, epoch=own)
    assert list(found) == ["one"] * is_condemned


BASES = {
    "nothing": lambda _own, _clock: 0,
    "own": lambda own, _clock: own,
    "clock": lambda _own, clock: clock,
    "max": max,
}
REPORTS = st.tuples(st.sampled_from(sorted(BASES)), st.integers(-2, 2 * 86_400) | st.integers(0, 2**63))


@given(start=st.integers(1, 86_400), steps=st.lists(st.tuples(st.integers(0, 3600), REPORTS), max_size=60))
@example(start=1, steps=[(0, ("own", 86_400))] * 60)
@example(start=1, steps=[(0, ("max", 86_399))] * 60)
def test_no_sequence_of_reports_raises_our_epoch_beyond_the_clock_and_a_day(start, steps):
    now = NOW
    own = first_epoch(now) + start
    for seconds, (base, offset) in steps:
        now += timedelta(seconds=seconds)
        worker = a_worker(epoch=max(0, BASES[base](own, first_epoch(now)) + offset))
        if worker.epoch > own and not by_epoch({"one": worker}, now=now, epoch=own):
            own = worker.epoch + 1  # as Leader.raise_above has it
        assert own <= first_epoch(now) + 86_400


async def test_a_worker_that_says_more_and_more_is_replaced_before_our_epoch_leaves_the_clock(rig):
    await rig.serving(replicas=2)
    first = rig.node.worker_of(rig.pods[0])
    limit = first_epoch(rig.clock()) + 86_400
    for _ in range(10):
        first.epoch = max(rig.leader.epoch, first_epoch(rig.clock())) + 86_399
        rig.node.blocks["2"] = 1000
        rig.apply(replicas=3)  # the newcomer reports less, so all are asked
        await passes(rig, 1, least=1)
        assert rig.leader.epoch <= limit
    assert rig.leader.epoch == limit, "it was believed once"
    await passes(rig, 20, least=1)
    await rig.settle()
    assert first.pod_uid not in uids(rig)
    assert rig.leader.epoch <= limit


def test_only_another_pod_helps_one_that_takes_no_command():
    pod = a_pod()
    seen = a_situation(None, deployment=a_deployment(), condemned={pod.name: Condemnation("Why", "words")})
    assert change_of(seen, pod) is Change.POD


async def rotate(rig, *keys: str) -> None:
    """Start another operator, which has these keys."""
    rig.operator_keys = keys
    rig.restart_operator()
    await rig.settle()


async def test_a_rotation_restarts_no_worker_and_those_that_run_go_on_to_take_orders(rig):
    await rig.serving(replicas=2)
    before = uids(rig)
    await rotate(rig, "bb", "aa")
    rig.apply(lifecycle={"desiredState": "Asleep"})
    await rig.settle()
    assert rig.status["phase"] == "Asleep"
    rig.apply(lifecycle={"desiredState": "Auto"})
    rig.worker().restart()
    await passes(rig, 6)
    await rig.settle()
    assert uids(rig) == before
    assert rig.status["phase"] == "Active"
    assert rig.condition("Degraded")[1] == "AsExpected"
    rig.apply(replicas=3)
    await rig.until_profiled()
    await rig.settle()
    assert keys_of(rig) == ["aa", "aa", "bb"], "new ones know the new key, in pods of the same revision"
    assert len({pod["metadata"]["labels"][LABEL_REVISION] for pod in rig.kube.everything(PODS)}) == 1


def keys_of(rig) -> list[str]:
    """Return by which keys the workers know the operator."""
    return [operator_key_of(pod) for pod in rig.kube.everything(PODS)]


def operator_key_of(pod) -> str:
    return parse_pod(pod).operator_key


async def test_workers_that_know_only_forgotten_keys_are_named_and_replaced_one_by_one(rig):
    await rig.serving(replicas=3)
    before = uids(rig)
    await rotate(rig, "bb", "aa")
    rig.operator_keys = ("cc", "bb")
    rig.restart_operator()
    rig.workers.asked.clear()
    await rig.reconcile()
    status, reason, message = rig.condition("Degraded")
    assert (status, reason) == ("True", "CredentialRefused")
    assert f"pod {rig.pods[0]}" in message
    assert any(event.startswith("CredentialRefused") for event in rig.events)
    assert rig.workers.asked.total() == 0, "they are shown nothing"
    assert rig.condition("Available")[0] == "True"
    for _ in range(40):
        await passes(rig, 1, least=3)
        assert len(rig.pods) <= 4
    await rig.settle()
    assert not before & uids(rig)
    assert keys_of(rig) == ["cc"] * 3
    assert rig.condition("Degraded")[1] == "AsExpected"


async def test_workers_of_a_release_before_tickets_are_replaced_with_an_image_that_knows_them(rig):
    await rig.serving(replicas=2)
    for name in rig.pods:
        rig.kube.edit(PODS, "team", name, forget_key)
    rig.default_image = "worker:2"
    rig.restart_operator()
    await rig.reconcile()
    assert rig.condition("Degraded")[1] == "CredentialRefused"
    await passes(rig, 30, least=2)
    await rig.settle()
    assert rig.status["image"] == "worker:2"
    assert keys_of(rig) == ["aa", "aa"]
    assert len(serving(rig)) == len(rig.pods) == 2


def forget_key(pod) -> None:
    """Make a pod one of before."""
    container = pod["spec"]["containers"][0]
    container["env"] = [item for item in container["env"] if item["name"] != OPERATOR_KEY]


async def test_a_worker_that_refuses_the_operator_is_told_of_and_never_replaced_in_vain(rig):
    await rig.serving(image="mine:1")
    before = uids(rig)
    words = "PERMISSION_DENIED: its ticket is made out to somebody else"
    rig.worker().unwelcome = words
    rig.apply(lifecycle={"desiredState": "Asleep"})
    await rig.settle()
    assert rig.condition("Degraded") == ("True", "CredentialRefused", f"pod {rig.pods[0]} takes no orders: {words}")
    assert uids(rig) == before, "another pod of this image would refuse, too"
    rig.worker().unwelcome = ""
    await rig.settle()
    assert rig.status["phase"] == "Asleep"
    assert rig.condition("Degraded")[1] == "AsExpected"


async def test_a_worker_of_an_old_image_that_refuses_gets_the_releases_image(rig):
    await rig.serving()
    rig.worker().unwelcome = "PERMISSION_DENIED: this caller has the role client"
    rig.default_image = "worker:2"
    rig.restart_operator()
    rig.apply(lifecycle={"desiredState": "Asleep"})
    await rig.reconcile()
    rig.apply(lifecycle={"desiredState": "Auto"})
    await passes(rig, 30)
    await rig.settle()
    assert rig.status["image"] == "worker:2"
    assert rig.condition("Degraded")[1] == "AsExpected"
