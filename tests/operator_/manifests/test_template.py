"""spec.template is merged over our pod as Kubernetes merges, and what the operator needs cannot be changed by it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_api.names import READINESS_GATE
from dormouse_operator.manifests import template_complaint
from dormouse_operator.manifests.template import MERGE_KEYS, merge_template
from tests.operator_.manifests.template_kit import pod, worker

fields = st.sampled_from([*MERGE_KEYS, *MERGE_KEYS.values(), "readinessGates", "conditionType", "securityContext"])
anything = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["a", "b", "worker", "download", READINESS_GATE]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(fields, inner, max_size=4),
    max_leaves=12,
)


@given(anything)
def test_whatever_the_schema_lets_pass_is_merged_or_complained_about(spec):
    """Below spec.template.spec the schema knows nothing."""
    template = {"spec": spec}
    if not template_complaint(template):
        merged = merge_template(pod(), template)
        assert merged["spec"]["containers"][0]["args"] == pod()["spec"]["containers"][0]["args"]


def test_an_init_container_named_download_is_the_users_where_none_is_ours():
    template = {"spec": {"initContainers": [{"name": "download", "image": "x"}]}}
    assert template_complaint(template)
    assert template_complaint(template, has_downloader=False) == ""


@pytest.mark.parametrize("template", [{}, {"spec": {}}, {"metadata": {}, "spec": None}, {"metadata": None}])
def test_an_empty_template_changes_nothing(template):
    assert merge_template(pod(), template) == pod()


DIGESTS = {"inference.dormouse.dev/revision", "inference.dormouse.dev/pod-digest"}


def test_labels_are_added_and_annotations_win():
    annotations = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "team": "x"}
    metadata = pod({"metadata": {"labels": {"tier": "gold"}, "annotations": annotations}})["metadata"]
    ours = {label: text for label, text in pod()["metadata"]["labels"].items() if label not in DIGESTS}
    assert ours | {"tier": "gold"} == {label: metadata["labels"][label] for label in [*ours, "tier"]}
    assert metadata["labels"].keys() == pod()["metadata"]["labels"].keys() | {"tier"}
    assert metadata["annotations"] == annotations


def test_a_worker_gets_what_the_template_says_and_keeps_the_rest():
    made = worker({"env": [{"name": "HF_HOME", "value": "/x"}], "startupProbe": {"failureThreshold": 900}})
    assert [item["name"] for item in made["env"]][-1] == "HF_HOME"
    assert made["startupProbe"] == {
        "httpGet": {"path": "/healthz", "port": 8080},
        "periodSeconds": 1,
        "timeoutSeconds": 2,
        "failureThreshold": 900,
    }


def test_another_template_makes_other_pods():
    assert pod({"spec": {"nodeSelector": {"a": "b"}}})["metadata"]["name"] != pod()["metadata"]["name"]


WORKER = "spec.template.spec.containers[worker]"
REFUSED = {
    "a label of ours": (
        {"metadata": {"labels": {"inference.dormouse.dev/replica": "7"}}},
        "inference.dormouse.dev/replica",
    ),
    "a label that selects": (
        {"metadata": {"labels": {"app.kubernetes.io/component": "x"}}},
        "app.kubernetes.io/component",
    ),
    "the gate": ({"spec": {"readinessGates": [{"conditionType": "mine"}]}}, READINESS_GATE),
    "the gate, by null": ({"spec": {"readinessGates": None}}, READINESS_GATE),
    "no containers": ({"spec": {"containers": None}}, "spec.template.spec.containers is null"),
    "the image": ({"spec": {"containers": [{"name": "worker", "image": "x"}]}}, f"{WORKER}.image"),
    "the command": ({"spec": {"containers": [{"name": "worker", "command": ["sh"]}]}}, f"{WORKER}.command"),
    "the arguments": ({"spec": {"containers": [{"name": "worker", "args": []}]}}, f"{WORKER}.args"),
    "a variable": (
        {"spec": {"containers": [{"name": "worker", "env": [{"name": "DORMOUSE_POD_UID", "value": "x"}]}]}},
        f"{WORKER}.env[DORMOUSE_POD_UID]",
    ),
    "all variables": ({"spec": {"containers": [{"name": "worker", "env": None}]}}, f"{WORKER}.env is null"),
    "a port": (
        {"spec": {"containers": [{"name": "worker", "ports": [{"containerPort": 50051, "name": "x"}]}]}},
        f"{WORKER}.ports[50051]",
    ),
    "all ports": ({"spec": {"containers": [{"name": "worker", "ports": None}]}}, f"{WORKER}.ports is null"),
    "what downloads": (
        {"spec": {"initContainers": [{"name": "download", "args": ["x"]}]}},
        "spec.template.spec.initContainers[download].args",
    ),
    "no list": ({"spec": {"volumes": {"name": "x"}}}, "spec.template.spec.volumes is dict; a list"),
    "no object": ({"spec": {"containers": ["worker"]}}, "spec.template.spec.containers[0] has no name"),
    "no key": ({"spec": {"volumes": [{"emptyDir": {}}]}}, "spec.template.spec.volumes[0] has no name"),
    "no key within": (
        {"spec": {"containers": [{"name": "worker", "volumeMounts": [{"name": "x"}]}]}},
        f"{WORKER}.volumeMounts[0] has no mountPath",
    ),
    "tolerations that are none": ({"spec": {"tolerations": "odd"}}, "spec.template.spec.tolerations is no list"),
    "a toleration that is none": ({"spec": {"tolerations": ["odd"]}}, "spec.template.spec.tolerations is no list"),
    "no spec": ({"spec": ["x"]}, "spec.template.spec is list; an object"),
}


@pytest.mark.parametrize(("template", "words"), REFUSED.values(), ids=REFUSED)
def test_what_the_operator_needs_is_refused_by_its_name(template, words):
    assert words in template_complaint(template)


@pytest.mark.parametrize(
    "template",
    [
        {},
        {"metadata": {"labels": {"app.kubernetes.io/version": "1"}}},
        {"spec": {"readinessGates": [{"conditionType": "mine"}, {"conditionType": READINESS_GATE}]}},
        {"spec": {"containers": [{"name": "helper", "image": "x", "args": ["y"], "ports": [{"containerPort": 9}]}]}},
        {"spec": {"initContainers": [{"name": "download", "env": [{"name": "HF_ENDPOINT", "value": "x"}]}]}},
        {"spec": {"nodeSelector": {"a": "b"}, "volumes": None}},
        {"spec": {"containers": [{"name": "worker", "ports": [{"containerPort": 9090}]}]}},
    ],
)
def test_what_users_need_is_allowed(template):
    assert template_complaint(template) == ""


async def test_a_template_that_can_not_be_merged_is_not_accepted_and_nothing_is_started(rig):
    rig.apply(template={"spec": {"containers": [{"name": "worker", "args": ["x"]}]}})
    await rig.settle()
    status, reason, message = rig.condition("Accepted")
    assert (status, reason) == ("False", "InvalidTemplate")
    assert f"{WORKER}.args" in message
    assert rig.status["phase"] == "Rejected"
    assert rig.pods == []


async def test_a_template_that_is_mended_is_served(rig):
    rig.apply(template={"spec": {"containers": [{"args": ["x"]}]}})
    await rig.settle()
    assert rig.condition("Accepted")[1] == "InvalidTemplate"
    await rig.serving(template={"spec": {"nodeSelector": {"disk": "fast"}}})
    assert rig.status["phase"] == "Active"
