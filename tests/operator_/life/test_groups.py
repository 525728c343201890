"""Replicas of several pods: made, agreed with, put to sleep, exchanged and ended as one, led by their first pod."""

from __future__ import annotations

import pytest

from dormouse_api.names import LABEL_LEADER_UID, LABEL_REVISION, READINESS_GATE
from dormouse_kube.api import DISRUPTION_BUDGETS, INFERENCE_DEPLOYMENTS, PODS, SERVICES
from dormouse_operator.model import WorkerState
from tests.operator_.kit import NEW, PAIR, SWAP, followers, leaders, passes, pods_of, uids


def condition_of(rig, name, type_):
    conditions = rig.kube.peek(PODS, "team", name)["status"]["conditions"]
    return next((item["status"] for item in conditions if item["type"] == type_), "")


async def test_a_group_comes_to_serve_as_one_replica(rig):
    await rig.serving(parallelism={"pipeline": 3, "tensor": 2}, replicas=2)
    first, second = leaders(rig)
    assert followers(rig) == [f"{first}-1", f"{first}-2", f"{second}-1", f"{second}-2"]
    assert rig.status["phase"] == "Active"
    assert (rig.status["replicas"], rig.status["readyReplicas"]) == (2, 2)
    ranks = [(rank["rank"], rank["pod"]) for rank in rig.status["kvCache"]["ranks"]]
    of_first = [(0, first), (1, first), (2, f"{first}-1"), (3, f"{first}-1"), (4, f"{first}-2"), (5, f"{first}-2")]
    assert ranks[:6] == of_first
    assert len(ranks) == 12
    assert rig.condition("Scheduled")[2] == "6 of 6 pods have a node"


async def test_commands_go_to_leaders_and_nobody_asks_a_follower(rig):
    await rig.serving(parallelism=PAIR)
    assert rig.node.worker_of(leaders(rig)[0]).commands == ["initialize_cache"]
    addresses = {pod["status"]["podIP"] for pod in pods_of(rig, "follower")}
    assert not addresses & rig.workers.asked.keys()


async def test_the_pods_have_names_to_find_each_other_before_they_are_ready(rig):
    rig.apply(parallelism=PAIR)
    await rig.settle()
    assert rig.kube.peek(SERVICES, "team", "tiny-ranks")["spec"]["publishNotReadyAddresses"] is True
    rig.kube.edit(SERVICES, "team", "tiny-ranks", lambda obj: obj["spec"].update(publishNotReadyAddresses=False))
    await rig.settle()
    assert rig.kube.peek(SERVICES, "team", "tiny-ranks")["spec"]["publishNotReadyAddresses"] is True


async def test_a_single_pod_needs_no_such_service_and_nobody_looks_for_one(rig):
    await rig.serving(parallelism={"tensor": 2})
    assert rig.kube.peek(SERVICES, "team", "tiny-ranks") is None
    assert not [call for call in rig.kube.calls if call.name == "tiny-ranks"]
    assert rig.worker().num_ranks == 2
    assert len(rig.status["kvCache"]["ranks"]) == 2


async def test_a_ranks_service_of_somebody_else_is_not_taken_over(rig):
    theirs = {"metadata": {"namespace": "team", "name": "tiny-ranks"}, "spec": {"ports": []}}
    rig.kube.put(SERVICES, theirs)
    rig.apply(parallelism=PAIR)
    await rig.settle()
    assert rig.condition("Accepted")[:2] == ("False", "ServiceNameTaken")
    assert "tiny-ranks" in rig.condition("Accepted")[2]
    assert rig.pods == []


async def test_what_the_numbers_forbid_is_not_accepted(rig):
    rig.apply(parallelism={"tensor": 8}, replicas=126)
    await rig.settle()
    assert rig.condition("Accepted")[1] == "InvalidSpec"
    assert "1008 ranks" in rig.condition("Accepted")[2]


async def test_followers_are_ready_while_their_leader_serves_and_at_no_other_time(rig):
    await rig.serving(parallelism=PAIR)
    [follower] = followers(rig)
    await passes(rig, 1)
    assert condition_of(rig, follower, "Ready") == "True"
    rig.apply(lifecycle={"desiredState": "Asleep"})
    await rig.settle()
    await passes(rig, 1)
    assert condition_of(rig, follower, "Ready") == "False"
    assert condition_of(rig, follower, READINESS_GATE) == "False"


async def test_a_group_sleeps_and_wakes_by_its_leader(rig):
    await rig.serving(parallelism=PAIR, replicas=2)
    before = uids(rig)
    rig.apply(lifecycle={"desiredState": "Asleep"})
    await rig.settle()
    assert (rig.status["phase"], rig.status["sleepingReplicas"]) == ("Asleep", 2)
    rig.apply(lifecycle={"desiredState": "Active"})
    await rig.settle()
    assert (rig.status["phase"], rig.status["readyReplicas"]) == ("Active", 2)
    assert uids(rig) == before


async def test_a_group_whose_ranks_are_not_all_there_is_told_and_gets_no_cache(rig):
    rig.apply(parallelism=PAIR)
    await rig.settle()
    rig.node.worker_of(leaders(rig)[0]).rank_blocks = {1: None}
    await rig.until_profiled()
    await rig.settle()
    assert rig.condition("MemoryProfiled")[1] == "RankMissing"
    assert f"rank 1 (pod {followers(rig)[0]})" in rig.condition("MemoryProfiled")[2]
    assert rig.node.worker_of(leaders(rig)[0]).commands == []


async def test_the_rank_with_the_least_room_limits_all_replicas(rig):
    rig.apply(parallelism=PAIR, replicas=2)
    await rig.settle()
    rig.node.worker_of(leaders(rig)[1]).rank_blocks = {1: 700}
    await rig.until_profiled()
    await rig.settle()
    assert rig.status["kvCache"]["limitingRank"] == f"{followers(rig)[1]}/1"
    assert {worker.allocated for worker in rig.workers.workers.values()} == {700}
    assert {rank["allocatedGpuBlocks"] for rank in rig.status["kvCache"]["ranks"]} == {700}


async def test_followers_stay_until_their_leader_has_drained(rig):
    await rig.serving(parallelism=PAIR)
    worker = rig.node.worker_of(leaders(rig)[0])
    worker.running_requests = 1
    rig.apply(replicas=0)
    await passes(rig, 6)
    assert len(rig.pods) == 2
    assert worker.state is WorkerState.DRAINING
    worker.running_requests = 0
    await passes(rig, 6)
    assert rig.pods == []


async def test_scaling_takes_and_makes_whole_groups(rig):
    await rig.serving(parallelism=PAIR, replicas=3)
    kept = leaders(rig)[0]
    rig.apply(replicas=1)
    await passes(rig, 10)
    assert rig.pods == [kept, f"{kept}-1"]
    rig.apply(replicas=2)
    await passes(rig, 10)
    assert (len(leaders(rig)), len(followers(rig)), rig.status["readyReplicas"]) == (2, 2, 2)


async def test_a_roll_out_goes_group_by_group_without_a_gap(rig):
    await rig.serving(parallelism=PAIR, replicas=2)
    before = uids(rig)
    rig.apply(engine=NEW)
    for _ in range(40):
        await passes(rig, 1)
        assert rig.condition("Available")[2].split(" ")[0] >= "2"
        assert len(leaders(rig)) <= 3
    assert not uids(rig) & before
    assert rig.condition("Progressing")[1] == "Complete"
    assert (len(leaders(rig)), len(followers(rig))) == (2, 2)


@pytest.mark.parametrize(("old", "new"), [({"pipeline": 1}, PAIR), (PAIR, {"pipeline": 3}), (PAIR, {"tensor": 2})])
async def test_other_ranks_are_rolled_out_like_any_other_spec(rig, old, new):
    await rig.serving(parallelism=old, replicas=2)
    rig.kube.edit(INFERENCE_DEPLOYMENTS, *rig.key, lambda obj: obj["spec"].update(parallelism=new))
    for _ in range(40):
        await passes(rig, 1)
        assert rig.status["phase"] == "Active"
    size = new.get("pipeline", 1)
    assert len(rig.pods) == 2 * size
    assert rig.condition("Progressing")[1] == "Complete"


async def test_the_engine_of_a_group_is_not_swapped_and_the_condition_says_why(rig):
    await rig.serving(parallelism=PAIR, replicas=2, rollout=SWAP)
    before, seen = uids(rig), set()
    rig.apply(engine=NEW)
    for _ in range(40):
        await passes(rig, 1)
        seen.add(rig.condition("Progressing")[2].partition(":")[0])
        assert len(leaders(rig)) <= 2
    assert "SleepSwap cannot exchange the engine of a group of 2 pods" in seen
    assert not uids(rig) & before
    assert rig.condition("Progressing")[1] == "Complete"


async def test_the_engine_of_a_single_pod_with_several_ranks_is_swapped(rig):
    await rig.serving(parallelism={"tensor": 2}, rollout=SWAP)
    before = uids(rig)
    rig.apply(engine=NEW)
    await rig.settle()
    assert uids(rig) == before
    assert "--tensor-parallel-size=2" in rig.worker().arguments


async def test_an_operator_that_starts_anew_goes_on_with_a_group_that_is_half_made(rig):
    rig.apply(parallelism={"pipeline": 3})
    await rig.reconcile()
    before = uids(rig)
    rig.restart_operator()
    await rig.until_profiled()
    await rig.settle()
    assert before < uids(rig)
    assert rig.status["phase"] == "Active"


async def test_groups_at_rest_are_not_asked_and_nothing_is_written(rig):
    await rig.serving(parallelism=PAIR, replicas=2)
    await passes(rig, 2)
    version, asked = rig.kube.version, sum(rig.workers.asked.values())
    assert await rig.reconcile() is None
    assert (rig.kube.version, sum(rig.workers.asked.values())) == (version, asked)


async def test_the_budget_is_of_pods_where_there_are_groups(rig):
    await rig.serving(parallelism=PAIR, replicas=2)
    assert rig.kube.peek(DISRUPTION_BUDGETS, "team", "tiny")["spec"]["minAvailable"] == 3
    rig.apply(replicas=3)
    await rig.settle()
    assert rig.kube.peek(DISRUPTION_BUDGETS, "team", "tiny")["spec"]["minAvailable"] == 5


async def test_every_pod_of_a_group_was_made_for_the_leader_that_is_there(rig):
    await rig.serving(parallelism={"pipeline": 3}, replicas=2)
    by_name = {pod["metadata"]["name"]: pod["metadata"] for pod in rig.kube.everything(PODS)}
    for name in followers(rig):
        labels, leader = by_name[name]["labels"], by_name[name.rpartition("-")[0]]
        assert labels[LABEL_LEADER_UID] == leader["uid"]
        assert labels[LABEL_REVISION] == leader["labels"][LABEL_REVISION]
