"""What Kueue reads on pods: their queue, and which of them it lets start together."""

from __future__ import annotations

import pytest

from dormouse_operator.manifests import WorkerDefaults, pod_manifest, revision_of
from dormouse_operator.parse import parse_deployment, parse_pod

DEFAULTS = WorkerDefaults("IfNotPresent", "aa", "bb")
QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
GROUP, COUNT = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"
PARENT, SERVING = "kueue.x-k8s.io/pod-suspending-parent", "kueue.x-k8s.io/pod-group-serving"


def deployment(labels=None, pipeline=1, template=None):
    metadata = {"namespace": "team", "name": "tiny", "uid": "u1", "labels": labels}
    spec = {"model": {"uri": "pvc://m/x"}, "engine": {"device": "cpu"}, "parallelism": {"pipeline": pipeline}}
    if template is not None:
        spec["template"] = template
    return parse_deployment({"metadata": metadata, "spec": spec})


def pod(wanted, **place):
    return pod_manifest(wanted, image="worker:1", index=0, defaults=DEFAULTS, **place)


def kueue(made):
    metadata = made["metadata"]
    said = metadata["labels"] | metadata["annotations"]
    return {name: value for name, value in said.items() if name.startswith("kueue.x-k8s.io/")}


def test_a_pod_waits_in_the_queue_of_its_deployment_with_its_priority_and_nothing_else():
    labels = {QUEUE: "team-a", PRIORITY: "night", "colour": "red"}
    made = pod(deployment(labels))
    assert kueue(made) == {QUEUE: "team-a", PRIORITY: "night"}
    assert "colour" not in made["metadata"]["labels"]


def test_the_template_says_more_than_the_resource():
    template = {"metadata": {"labels": {QUEUE: "team-b", "colour": "red"}, "annotations": {"a": "b"}}}
    made = pod(deployment({QUEUE: "team-a", PRIORITY: "night"}, template=template))
    assert kueue(made) == {QUEUE: "team-b", PRIORITY: "night"}
    assert made["metadata"]["labels"]["colour"] == "red"
    assert made["metadata"]["annotations"]["a"] == "b"


def test_pods_of_a_group_are_one_workload_that_the_operator_ends():
    wanted = deployment({QUEUE: "team-a"}, pipeline=3)
    leader = pod(wanted)
    leader["metadata"]["uid"] = "uid-leader"
    follower = pod(wanted, leader=parse_pod(leader), ordinal=2)
    name = leader["metadata"]["name"]
    assert kueue(leader)[GROUP] == kueue(follower)[GROUP] == name
    assert kueue(leader)[COUNT] == kueue(follower)[COUNT] == "3"
    assert kueue(follower)[SERVING] == "true"
    assert kueue(follower)[PARENT] == "inferencedeployment"
    assert kueue(follower)["kueue.x-k8s.io/managed"] == "true"


@pytest.mark.parametrize("pipeline", [1, 2])
def test_without_a_queue_nothing_is_said_to_kueue(pipeline):
    assert kueue(pod(deployment({"colour": "red"}, pipeline))) == {}


def test_another_queue_means_other_pods_and_none_leaves_them():
    plain = revision_of(deployment(), "worker:1")
    assert revision_of(deployment({"colour": "red"}), "worker:1") == plain
    assert revision_of(deployment({QUEUE: "team-a"}), "worker:1") != plain


def test_a_pod_is_in_a_queue_only_where_kueue_says_that_it_manages_it():
    made = pod(deployment({QUEUE: "team-a"}))
    made["metadata"]["uid"] = "u"
    assert parse_pod(made).queue == ""
    made["metadata"]["labels"]["kueue.x-k8s.io/managed"] = "true"
    made["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    assert parse_pod(made).queue == "team-a"
    assert parse_pod(made).scheduling_gates == ("kueue.x-k8s.io/admission",)
