"""What stops a roll-out, and when it goes on: workers that fail or crash, and no progress for too long."""

from __future__ import annotations

from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS
from dormouse_kube.errors import Forbidden
from tests.operator_.kit import NEW, passes, serving


async def test_a_failed_worker_stops_the_roll_out_and_the_old_ones_serve_on(rig):
    await rig.serving(replicas=2)
    before = set(rig.pods)
    rig.apply(engine=NEW)
    await passes(rig, 3, load=False)
    [new] = set(rig.pods) - before
    rig.node.worker_of(new).fail("ModelNotFound", "/models/x does not exist")
    await passes(rig, 10)
    assert rig.condition("Progressing")[:2] == ("False", "WorkerFailed")
    assert "/models/x does not exist; the old pods serve on" in rig.condition("Progressing")[2]
    assert set(serving(rig)) == before
    assert set(rig.pods) == {new, *before}
    assert rig.status["phase"] == "Active"
    assert len([event for event in rig.events if event.startswith("WorkerFailed")]) == 1


async def test_a_crashing_worker_stops_the_roll_out_until_it_comes_up(rig):
    await rig.serving()
    [old] = rig.pods
    rig.apply(engine=NEW)
    await passes(rig, 3, load=False)
    [new] = set(rig.pods) - {old}
    rig.node.crash(new, exit_code=1)
    await passes(rig, 3, load=False)
    assert rig.condition("Progressing")[1] == "WorkerFailed"
    assert f"pod {new} ended with exit code 1" in rig.condition("Progressing")[2]
    await passes(rig, 12)
    assert rig.condition("Progressing")[1] == "Complete"
    assert rig.pods == [new]


async def test_no_progress_within_the_deadline_stops_the_roll_out_and_late_progress_resumes_it(rig):
    await rig.serving(replicas=2, rollout={"progressDeadlineSeconds": 100})
    before = set(rig.pods)
    rig.apply(engine=NEW)
    await passes(rig, 4, load=False)
    rig.clock.step(99)
    await passes(rig, 1, load=False)
    assert rig.condition("Progressing")[:2] == ("True", "Surging")
    rig.clock.step(1)
    await passes(rig, 1, load=False)
    assert rig.condition("Progressing")[:2] == ("False", "ProgressDeadlineExceeded")
    assert "the old pods serve on" in rig.condition("Progressing")[2]
    assert set(serving(rig)) == before
    await passes(rig, 30)
    assert rig.condition("Progressing")[:2] == ("True", "Complete")


async def test_every_step_gives_the_roll_out_its_time_anew(rig):
    await rig.serving(replicas=3, rollout={"progressDeadlineSeconds": 100})
    rig.apply(engine=NEW)
    for _ in range(3):
        await passes(rig, 8, load=False)
        rig.clock.step(60)
        await passes(rig, 2)
        assert rig.condition("Progressing")[:2] in {("True", "Surging"), ("True", "Complete")}
    await passes(rig, 12)
    assert rig.condition("Progressing")[:2] == ("True", "Complete")


async def test_a_pod_that_has_just_been_made_has_its_whole_time(rig):
    limits = {"progressDeadlineSeconds": 100, "maxSurge": 0, "maxUnavailable": 1}
    await rig.serving(rollout=limits, lifecycle={"drainTimeoutSeconds": 80})
    rig.worker().running_requests = 1
    rig.apply(engine=NEW)
    await passes(rig, 5)
    rig.clock.step(80)
    await passes(rig, 5, load=False)
    rig.clock.step(90)
    await passes(rig, 1, load=False)
    assert rig.condition("Progressing")[0] == "True"
    rig.clock.step(10)
    await passes(rig, 1, load=False)
    assert rig.condition("Progressing")[0] == "False"


async def test_requests_that_have_their_time_to_end_make_nobody_late(rig):
    limits = {"progressDeadlineSeconds": 100, "maxSurge": 0, "maxUnavailable": 1}
    await rig.serving(rollout=limits, lifecycle={"drainTimeoutSeconds": 300})
    rig.worker().running_requests = 1
    rig.apply(engine=NEW)
    await passes(rig, 5)
    rig.clock.step(290)
    await passes(rig, 1)
    assert rig.condition("Progressing")[0] == "True"
    rig.clock.step(10)
    await passes(rig, 12)
    assert rig.condition("Progressing")[1] == "Complete"


async def test_the_deadline_of_pods_that_are_not_even_taken_survives_a_restart_of_the_operator(rig):
    await rig.serving(rollout={"progressDeadlineSeconds": 100})
    rig.kube.fail("create", PODS, Forbidden("quota exceeded"), times=9)
    rig.apply(engine=NEW)
    await passes(rig, 2)
    rig.clock.step(100)
    rig.restart_operator()
    await passes(rig, 1)
    assert rig.condition("Progressing")[:2] == ("False", "ProgressDeadlineExceeded")
    await passes(rig, 20)
    assert rig.condition("Progressing")[:2] == ("True", "Complete"), "the quota was raised"


async def test_the_deadline_is_looked_at_even_if_nothing_changes(rig):
    await rig.serving(rollout={"progressDeadlineSeconds": 100})
    rig.node.is_full = True
    rig.apply(engine=NEW)
    await passes(rig, 4)
    rig.clock.step(40)
    assert await rig.reconcile() == 60.0


async def test_an_old_pod_that_restarts_during_a_stopped_roll_out_serves_again(rig):
    await rig.serving(replicas=2)
    before = set(rig.pods)
    rig.apply(engine=NEW)
    await passes(rig, 3, load=False)
    [new] = set(rig.pods) - before
    rig.node.worker_of(new).fail("ModelNotFound", "gone")
    await passes(rig, 3)
    rig.node.crash(min(before), exit_code=1)
    await passes(rig, 2, load=False)
    assert len(serving(rig)) == 1
    await passes(rig, 8)
    assert set(serving(rig)) == before


async def test_a_first_start_that_takes_too_long_says_so(rig):
    rig.apply(rollout={"progressDeadlineSeconds": 100})
    await rig.settle()
    assert rig.condition("Progressing")[:2] == ("True", "Starting")
    rig.clock.step(100)
    await rig.settle()
    assert rig.condition("Progressing")[:2] == ("False", "ProgressDeadlineExceeded")
    assert rig.status["phase"] == "Profiling", "it is no failure: it goes on"


async def test_nothing_is_written_while_a_stopped_roll_out_waits(rig):
    await rig.serving()
    rig.apply(engine=NEW)
    await passes(rig, 3, load=False)
    rig.node.worker_of(next(name for name in rig.pods if name not in serving(rig))).fail("Internal", "no")
    await rig.settle()
    rig.kube.calls.clear()
    await passes(rig, 3)
    assert rig.kube.mutations() == []
    assert rig.kube.peek(INFERENCE_DEPLOYMENTS, *rig.key)["status"]["rollout"]["revision"]
