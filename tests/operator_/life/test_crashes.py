"""Every end that nobody asked for is one Event and is counted in the status, with its cause and its time."""

from dataclasses import replace
from datetime import timedelta

from dormouse_kube.api import PODS
from dormouse_operator.decide import crashes
from dormouse_operator.decide.conditions.all import evaluate_all
from dormouse_operator.decide.findings import find
from dormouse_operator.decide.status import build_status
from dormouse_operator.model import Container, Failure
from dormouse_operator.parse import format_time, parse_status
from dormouse_operator.testing.nouns import NOW, a_deployment, a_pod, a_situation, a_worker, but

KILLED = "the engine process was killed by signal 9 (SIGKILL); its last words: none"


def not_ready(rig, name, since):
    """Have the kubelet's probe fail."""

    def edit(pod):
        others = [item for item in pod["status"]["conditions"] if item["type"] != "Ready"]
        ready = {"type": "Ready", "status": "False", "lastTransitionTime": format_time(since)}
        pod["status"]["conditions"] = [*others, ready]

    rig.kube.edit(PODS, rig.key.namespace, name, edit)


def kill_engine(rig, reason="EngineDied", words=KILLED):
    """Kill it, and have the kubelet see it."""
    rig.worker().lose_engine(reason, words, rig.clock())
    not_ready(rig, rig.pods[0], rig.clock())


def told(rig, reason="EngineDied"):
    return [event for event in rig.events if event.startswith(f"{reason}:")]


async def test_an_engine_that_dies_is_one_event_and_is_counted_in_the_status(rig):
    await rig.serving()
    kill_engine(rig)
    await rig.settle()
    now = format_time(rig.clock())
    assert told(rig) == [f"EngineDied: pod {rig.pods[0]} at {now}: {KILLED}"]
    [crash] = rig.status["crashes"]
    assert (crash["pod"], crash["count"], crash["reason"], crash["time"]) == (rig.pods[0], 1, "EngineDied", now)
    rig.finish_loading()
    await rig.settle()
    assert rig.status["phase"] == "Active"
    assert len(told(rig)) == 1
    assert rig.status["crashes"] == [crash], "it stands there as long as the pod"


async def test_each_end_is_told_also_when_the_operator_was_away(rig):
    await rig.serving()
    for _ in range(2):
        kill_engine(rig)
        rig.clock.step(60)
    rig.restart_operator()
    await rig.settle()
    assert told(rig)[0].endswith("; 2 times since it was last looked at")
    kill_engine(rig, "RankLost", "rank 1 is gone")
    await rig.settle()
    assert told(rig, "RankLost")[0].endswith(": rank 1 is gone; 3 times in this pod")
    rig.restart_operator()
    await rig.settle()
    assert (len(told(rig)), len(told(rig, "RankLost"))) == (1, 1)


async def test_a_container_that_ended_and_runs_again_is_told_too(rig):
    await rig.serving()
    rig.node.crash(rig.pods[0], exit_code=137, message="INFO served 200")
    await rig.settle()
    assert told(rig, "WorkerCrashed") == [
        (
            f"WorkerCrashed: pod {rig.pods[0]} at {format_time(rig.clock())}: the container ended: "
            "exit code 137, restarted 1 times; the last line of its log: INFO served 200"
        )
    ]
    kill_engine(rig)
    await rig.settle()
    assert told(rig)[0].endswith("2 times in this pod"), "the new container counts its engines from the first"
    assert rig.status["crashes"][0]["containerRestarts"] == 1


async def test_what_a_condition_tells_of_the_same_end_is_not_told_twice(rig):
    await rig.serving()
    rig.node.crash(rig.pods[0], exit_code=1, message="no space left", restarts=False)
    await rig.settle()
    assert len(told(rig, "WorkerCrashed")) == 1
    assert rig.status["crashes"][0]["count"] == 1


async def test_a_worker_that_was_asked_to_end_is_no_crash(rig):
    await rig.serving()
    rig.node.crash(rig.pods[0], exit_code=0)
    await rig.settle()
    assert not told(rig, "WorkerCrashed")
    assert rig.status["crashes"][0]["count"] == 0


async def test_what_is_known_of_a_pod_goes_with_it(rig):
    await rig.serving()
    kill_engine(rig)
    await rig.settle()
    rig.kube.finish_deletion(PODS, rig.key.namespace, rig.pods[0])
    await rig.until_profiled()
    await rig.settle()
    assert "crashes" not in rig.status


async def test_a_loading_engine_is_explained_by_the_last_end_with_its_time(rig):
    await rig.serving()
    rig.node.crash(rig.pods[0], exit_code=3, message="long ago")
    await rig.until_profiled()
    await rig.settle()
    rig.clock.step(3600)
    kill_engine(rig)
    await rig.settle()
    message = rig.condition("ModelLoaded")[2]
    assert message.endswith(f"is loading (at {format_time(rig.clock())}: {KILLED})")
    assert "long ago" not in message


async def test_a_worker_that_falls_silent_is_named_with_its_time_and_not_with_what_was_before_it_served(rig):
    await rig.serving()
    rig.node.crash(rig.pods[0], exit_code=3, message="long ago")
    await rig.until_profiled()
    await rig.settle()
    rig.clock.step(3600)
    since = rig.clock() - timedelta(seconds=30)
    not_ready(rig, rig.pods[0], since)
    rig.workers.workers.clear()
    await rig.reconcile()
    words = f"pod {rig.pods[0]} gives no answer since {format_time(since)}: it does not accept connections"
    assert rig.condition("Ready") == ("False", "WorkerSilent", f"0 of 1 workers have loaded the model; {words}")


async def test_a_pod_that_is_not_ready_is_named_with_the_reason_and_since_when(rig):
    await rig.serving()
    since = rig.clock()
    rig.clock.step(40)
    not_ready(rig, rig.pods[0], since)
    await rig.reconcile()
    assert rig.condition("Ready") == (
        "False",
        "PodsNotReady",
        (
            f"0 of 1 replicas serve; pod {rig.pods[0]}: its readiness probe fails since {format_time(since)}; "
            "its worker says that it is READY"
        ),
    )


def ended(index, seconds, **fields):
    """Return a pod whose container ended so many seconds ago."""
    at = NOW - timedelta(seconds=seconds)
    container = Container(restart_count=1, exit_code=1, exit_message="x" * 500, ended=at, is_running=True, **fields)
    return a_pod(index, container=container)


def written(seen):
    """Return the crashes in the status, and the same sight with that status recorded."""
    found = find(seen)
    status = build_status(seen, found, evaluate_all(seen, found), url="")
    deployment = replace(seen.deployment, recorded=parse_status(status))
    return status["crashes"], but(seen, deployment=deployment)


def test_the_status_holds_the_newest_thousand_with_few_words_and_tells_each_once():
    """More than the schema allows would have every later status refused."""
    pods = tuple(ended(index, seconds=1 + (index * 7) % 1005) for index in range(1005))
    seen = a_situation(*[None] * 1005, pods=pods, deployment=a_deployment(replicas=1005))
    assert len(crashes.news(seen)) == 1000
    told, later = written(seen)
    assert {crash["podUID"] for crash in told} == {
        pod.uid for pod in pods if pod.container.ended > NOW - timedelta(seconds=1001)
    }
    assert [crash["pod"] for crash in told] == sorted(crash["pod"] for crash in told)
    assert max(len(crash["message"]) for crash in told) == 200
    assert crashes.news(later) == []
    assert written(later)[0] == told, "nothing to write"


def test_who_ended_in_order_has_no_time_and_is_left_out_first():
    asked = a_pod(2000, container=Container(restart_count=1, exit_code=0, is_running=True))
    pods = (asked, *(ended(index, seconds=index) for index in range(1000)))
    told, _ = written(a_situation(*[None] * 1001, pods=pods, deployment=a_deployment(replicas=1001)))
    assert asked.uid not in {crash["podUID"] for crash in told}


def test_what_the_front_before_said_of_its_engines_is_not_counted_again_after_a_restart():
    started = NOW - timedelta(seconds=10)
    old = a_worker(
        engine_failures=2, last_engine_failure=Failure("EngineDied", KILLED), engine_failed=NOW - timedelta(seconds=60)
    )
    before = a_situation(old)
    [crash], seen = written(before)
    assert crash["count"] == 2
    restarted = replace(seen, pods=(ended(0, seconds=20, started=started),))
    [crash], seen = written(restarted)
    assert (crash["count"], crash["engineFailures"]) == (3, 0), "it still tells what the front before told"
    [crash], seen = written(seen)
    assert crash["count"] == 3, "and may do so for a while"
    fresh = replace(old, engine_failures=1, engine_failed=NOW)
    [crash], _ = written(replace(seen, workers={seen.pods[0].name: fresh}))
    assert (crash["count"], crash["engineFailures"]) == (4, 1)


def test_an_engine_that_ended_just_as_the_restart_is_seen_counts_with_the_next_look():
    """The front that tells may be either one."""
    worker = a_worker(engine_failures=1, last_engine_failure=Failure("EngineDied", KILLED), engine_failed=NOW)
    [crash], seen = written(a_situation(worker, pods=(ended(0, seconds=20),)))
    assert (crash["count"], crash["reason"]) == (1, "WorkerCrashed")
    [crash], _ = written(seen)
    assert (crash["count"], crash["reason"]) == (2, "EngineDied")
