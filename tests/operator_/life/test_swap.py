"""SleepSwap: the new engine starts in the pod that owns the device; what cannot be swapped is recreated."""

from __future__ import annotations

from dormouse_api.names import LABEL_REPLICA
from dormouse_kube.api import PODS
from dormouse_operator.model import WorkerState
from tests.operator_.kit import NEW, OLD, SWAP, passes, revisions, serving, uids


async def test_the_engine_is_swapped_in_the_same_pod_and_the_label_follows(rig):
    await rig.serving(rollout=SWAP)
    before, first = uids(rig), revisions(rig)
    rig.apply(engine=NEW)
    await rig.settle()
    worker = rig.worker()
    assert uids(rig) == before
    assert worker.commands == ["initialize_cache", "drain", "swap_engine", "initialize_cache"]
    assert "--max-num-seqs=4" in worker.arguments
    assert revisions(rig) == {worker.settings_digest} != first
    labels = rig.kube.everything(PODS)[0]["metadata"]["labels"]
    assert labels[LABEL_REPLICA] == "0"
    assert rig.status["phase"] == "Active"
    assert rig.condition("Progressing")[:2] == ("True", "Complete")
    assert rig.status["rollout"]["revision"] == worker.settings_digest


async def test_replicas_are_swapped_one_at_a_time(rig):
    await rig.serving(replicas=3, rollout=SWAP)
    before = uids(rig)
    rig.apply(engine=NEW)
    await passes(rig, 40, least=2)
    assert uids(rig) == before
    assert len(serving(rig)) == 3
    assert len(revisions(rig)) == 1
    assert rig.condition("Progressing")[1] == "Complete"


async def test_more_may_be_away_where_the_spec_says_so(rig):
    await rig.serving(replicas=4, rollout={**SWAP, "maxUnavailable": "50%"})
    rig.apply(engine=NEW)
    away = []
    for _ in range(30):
        await passes(rig, 1, least=2)
        away.append(4 - len(serving(rig)))
    assert max(away) == 2
    assert away[-1] == 0


async def test_requests_are_drained_before_the_swap_and_ended_when_the_time_is_over(rig):
    await rig.serving(rollout=SWAP, lifecycle={"drainTimeoutSeconds": 60})
    rig.worker().running_requests = 1
    rig.apply(engine=NEW)
    await passes(rig, 6)
    assert "swap_engine" not in rig.worker().commands
    assert rig.worker().state is WorkerState.DRAINING
    rig.clock.step(60)
    await passes(rig, 6)
    assert rig.worker().commands[-3:] == ["abort", "swap_engine", "initialize_cache"]
    assert len(serving(rig)) == 1


async def test_a_new_engine_that_does_not_start_leaves_the_old_one_serving_and_the_roll_out_stops(rig):
    await rig.serving(replicas=2, rollout=SWAP)
    before, first = uids(rig), revisions(rig)
    for index in (0, 1):
        rig.worker(index).swap_failure = "InsufficientMemory: 3 GiB are missing"
    rig.apply(engine=NEW)
    await passes(rig, 20, least=1)
    assert len(serving(rig)) == 2
    assert uids(rig) == before
    assert revisions(rig) == first
    swaps = [rig.worker(index).commands.count("swap_engine") for index in (0, 1)]
    assert sorted(swaps) == [0, 1], "it is not tried again and again"
    status, reason, words = rig.condition("Progressing")
    assert (status, reason) == ("False", "SwapRefused")
    assert "InsufficientMemory: 3 GiB are missing" in words
    assert words.count("the old pods serve on") == 1
    assert rig.status["phase"] == "Active"
    assert len([event for event in rig.events if event.startswith("SwapRefused")]) == 1


async def test_the_old_spec_again_swaps_back_only_what_was_swapped(rig):
    await rig.serving(replicas=2, rollout=SWAP)
    first = revisions(rig)
    rig.worker(1).swap_failure = "no"
    rig.worker(0).num_gpu_blocks = 2000
    rig.apply(engine=NEW)
    await passes(rig, 20)
    assert len(revisions(rig)) == 2
    rig.apply(engine=OLD)
    await passes(rig, 20)
    assert revisions(rig) == first
    assert len(serving(rig)) == 2
    assert rig.condition("Progressing")[1] == "Complete"


async def test_a_container_that_restarts_with_its_first_arguments_is_swapped_again(rig):
    await rig.serving(rollout=SWAP)
    rig.apply(engine=NEW)
    await rig.settle()
    wanted = revisions(rig)
    rig.node.crash(rig.pods[0], exit_code=1)
    await passes(rig, 25)
    assert revisions(rig) == wanted
    assert rig.worker().settings_digest in wanted
    assert len(serving(rig)) == 1


async def test_a_change_of_the_pod_is_recreated_one_at_a_time_and_the_condition_says_why(rig):
    await rig.serving(replicas=2, rollout=SWAP)
    before = uids(rig)
    rig.apply(resources={"limits": {"memory": "1Gi"}})
    seen = set()
    for _ in range(40):
        await passes(rig, 1, least=1)
        assert len(rig.pods) <= 2
        seen.add(rig.condition("Progressing")[1])
        if rig.condition("Progressing")[1] == "Recreating":
            assert "SleepSwap cannot change image, device, resources" in rig.condition("Progressing")[2]
    assert {"Recreating", "Complete"} <= seen
    assert not before & uids(rig)
    assert not [worker for worker in rig.workers.workers.values() if "swap_engine" in worker.commands]


async def test_another_image_is_recreated(rig):
    await rig.serving(rollout=SWAP)
    before = uids(rig)
    rig.apply(image="worker:9")
    await passes(rig, 20)
    assert not before & uids(rig)
    assert rig.status["image"] == "worker:9"
    assert rig.status["phase"] == "Active"


async def test_a_pod_that_has_no_engine_to_put_to_sleep_is_recreated(rig):
    rig.apply(rollout=SWAP)
    await rig.settle()
    rig.worker().fail("ModelNotFound", "gone")
    await rig.settle()
    rig.apply(engine=NEW)
    await passes(rig, 20)
    assert rig.status["phase"] == "Active"
    assert "swap_engine" not in rig.worker().commands


async def test_sleeping_engines_are_swapped_asleep_and_sleep_on(rig):
    await rig.serving(rollout=SWAP, lifecycle={"desiredState": "Asleep"})
    before = uids(rig)
    rig.apply(engine=NEW)
    await rig.settle()
    assert uids(rig) == before
    assert rig.status["phase"] == "Asleep"
    assert rig.worker().commands[-5] == "swap_engine"
    assert rig.worker().commands[-4:] == ["initialize_cache", "drain", "prepare_sleep", "sleep 1"]
    assert rig.condition("Progressing")[1] == "Complete"


async def test_from_a_swapped_pod_a_surge_returns_to_the_first_spec_under_another_name(rig):
    """The name of the first pod is taken: a pod keeps it whatever engine it has."""
    await rig.serving(rollout=SWAP)
    [name] = rig.pods
    rig.apply(engine=NEW)
    await rig.settle()
    rig.apply(engine=OLD, rollout={"strategy": "Surge"})
    await passes(rig, 20, least=1)
    assert rig.pods == [f"{name}-1"]
    assert rig.condition("Progressing")[1] == "Complete"


async def test_a_worker_is_told_to_drain_for_a_swap_only_when_the_endpoints_are_gone(rig):
    await rig.serving(rollout=SWAP)
    rig.apply(engine=NEW)
    for _ in range(3):
        await rig.reconcile()
    assert rig.worker().commands == ["initialize_cache"], "the kubelet has not seen the gate yet"
    await rig.settle()
    assert "swap_engine" in rig.worker().commands


async def test_settings_that_go_by_no_digest_become_no_label(rig):
    await rig.serving()
    first = revisions(rig)
    rig.worker().settings_digest = "other"
    rig.node.crash(rig.pods[0], exit_code=1)
    rig.worker().settings_digest = "other"
    await passes(rig, 3)
    assert revisions(rig) == first


async def test_a_swap_that_takes_its_time_is_not_late_because_others_were_before_it(rig):
    await rig.serving(replicas=3, rollout={**SWAP, "progressDeadlineSeconds": 100})
    rig.apply(engine=NEW)
    for _ in range(3):
        await passes(rig, 6)
        rig.clock.step(60)
        await passes(rig, 1)
        assert rig.condition("Progressing")[0] == "True"
