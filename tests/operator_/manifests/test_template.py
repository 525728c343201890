"""spec.template is merged over our pod as Kubernetes merges, and what the operator needs cannot be changed by it."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_api.names import READINESS_GATE
from dormouse_operator.manifests import WorkerDefaults, pod_manifest, template_complaint
from dormouse_operator.manifests.template import MERGE_KEYS, merge, merge_template
from dormouse_operator.parse import parse_deployment

DEFAULTS = WorkerDefaults("IfNotPresent", "aa", "bb")


def pod(template=None, **spec):
    metadata = {"namespace": "team", "name": "tiny", "uid": "u1", "generation": 1}
    body = {"model": {"uri": "pvc://models/tiny"}, "engine": {"device": "cpu"}, **spec}
    body |= {} if template is None else {"template": template}
    return pod_manifest(
        parse_deployment({"metadata": metadata, "spec": body}), image="worker:1", index=0, defaults=DEFAULTS
    )


def worker(template):
    return pod({"spec": {"containers": [{"name": "worker", **template}]}})["spec"]["containers"][0]


MERGES = {
    "a field of an object is replaced, the others stay": (
        {"securityContext": {"runAsUser": 1, "runAsNonRoot": True}},
        {"securityContext": {"runAsUser": 7}},
        {"securityContext": {"runAsUser": 7, "runAsNonRoot": True}},
    ),
    "null removes a field": ({"a": 1, "b": {"c": 2, "d": 3}}, {"a": None, "b": {"c": None}}, {"b": {"d": 3}}),
    "null of what is not there leaves nothing": (
        {"a": 1},
        {"b": None, "c": {"d": None, "e": 1}},
        {"a": 1, "c": {"e": 1}},
    ),
    "containers by name": (
        {"containers": [{"name": "w", "image": "i", "tty": True}]},
        {"containers": [{"name": "w", "tty": False}, {"name": "x", "image": "j"}]},
        {"containers": [{"name": "w", "image": "i", "tty": False}, {"name": "x", "image": "j"}]},
    ),
    "initContainers by name": (
        {"initContainers": [{"name": "a", "image": "i"}]},
        {"initContainers": [{"name": "b"}, {"name": "a", "image": "j"}]},
        {"initContainers": [{"name": "a", "image": "j"}, {"name": "b"}]},
    ),
    "env by name": (
        {"containers": [{"name": "w", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}]},
        {"containers": [{"name": "w", "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]}]},
        {
            "containers": [
                {"name": "w", "env": [{"name": n, "value": v} for n, v in (("A", "1"), ("B", "3"), ("C", "4"))]}
            ]
        },
    ),
    "ports by containerPort": (
        {"containers": [{"name": "w", "ports": [{"containerPort": 1, "name": "a"}]}]},
        {"containers": [{"name": "w", "ports": [{"containerPort": 1, "hostPort": 9}, {"containerPort": 2}]}]},
        {
            "containers": [
                {"name": "w", "ports": [{"containerPort": 1, "name": "a", "hostPort": 9}, {"containerPort": 2}]}
            ]
        },
    ),
    "volumeMounts by mountPath, not by name": (
        {"containers": [{"name": "w", "volumeMounts": [{"name": "v", "mountPath": "/a"}]}]},
        {"containers": [{"name": "w", "volumeMounts": [{"name": "v", "mountPath": "/b"}]}]},
        {"containers": [{"name": "w", "volumeMounts": [{"name": "v", "mountPath": p} for p in ("/a", "/b")]}]},
    ),
    "volumes by name, and another source replaces ours": (
        {"volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "v", "emptyDir": {"medium": "Memory"}}]},
        {"volumes": [{"name": "tmp", "hostPath": {"path": "/x"}}, {"name": "v", "emptyDir": {"sizeLimit": "8Gi"}}]},
        {
            "volumes": [
                {"name": "tmp", "hostPath": {"path": "/x"}},
                {"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
            ]
        },
    ),
    "tolerations as a whole": (
        {"tolerations": [{"key": "a"}]},
        {"tolerations": [{"key": "b"}]},
        {"tolerations": [{"key": "b"}]},
    ),
    "topologySpreadConstraints by topologyKey": (
        {"topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 1}]},
        {"topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 2}, {"topologyKey": "host", "maxSkew": 1}]},
        {"topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 2}, {"topologyKey": "host", "maxSkew": 1}]},
    ),
    "two constraints on one key, where we have none, stay two": (
        {},
        {"topologySpreadConstraints": [{"topologyKey": "z", "maxSkew": 1}, {"topologyKey": "z", "maxSkew": 2}]},
        {"topologySpreadConstraints": [{"topologyKey": "z", "maxSkew": 1}, {"topologyKey": "z", "maxSkew": 2}]},
    ),
    "imagePullSecrets by name": (
        {"imagePullSecrets": [{"name": "a"}]},
        {"imagePullSecrets": [{"name": "b"}, {"name": "a"}]},
        {"imagePullSecrets": [{"name": "a"}, {"name": "b"}]},
    ),
    "an object takes the place of a scalar": ({"a": 1}, {"a": {"b": None, "c": 2}}, {"a": {"c": 2}}),
}


@pytest.mark.parametrize(("ours", "theirs", "merged"), MERGES.values(), ids=MERGES)
def test_fields_and_lists_are_merged_as_kubernetes_does(ours, theirs, merged):
    before = copy.deepcopy((ours, theirs))
    assert merge(ours, theirs) == merged
    assert (ours, theirs) == before


scalars = st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["a", "b"])
plain = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyz"), inner)
)


@st.composite
def templates(draw):
    """Draw PodSpecs with every list that has a merge key, keys unique within a list."""

    def items(name, inner):
        keys = (
            st.integers(0, 4) if MERGE_KEYS[name] == "containerPort" else st.sampled_from(["worker", "tmp", "a", "b"])
        )
        drawn = draw(st.lists(keys, unique=True, max_size=3))
        return [{**{k: draw(v) for k, v in inner.items()}, MERGE_KEYS[name]: key} for key in drawn]

    spec = {name: draw(plain) for name in draw(st.sets(st.sampled_from(["nodeSelector", "affinity", "tolerations"])))}
    for name in draw(st.sets(st.sampled_from(["volumes", "imagePullSecrets", "hostAliases"]))):
        spec[name] = items(name, {"emptyDir": plain})
    containers = items("containers", {"stdin": plain})
    for container in containers:
        for name in draw(st.sets(st.sampled_from(["env", "ports", "volumeMounts"]))):
            container[name] = items(name, {"value": plain})
    return {**spec, "containers": containers} if containers else spec


@given(templates())
def test_a_merge_repeated_changes_nothing_and_all_that_is_ours_stays_or_was_named(template):
    ours = pod()["spec"]
    once = merge(ours, template)
    assert merge(once, template) == once
    assert all(once[field] == ours[field] for field in ours if field not in template)
    names = [container["name"] for container in once["containers"]]
    assert len(set(names)) == len(names)
    assert names[0] == "worker"


@given(templates())
def test_a_null_is_never_in_a_pod(template):
    def nulls(value):
        if isinstance(value, dict):
            return any(inner is None or nulls(inner) for inner in value.values())
        return isinstance(value, list) and any(nulls(inner) for inner in value)

    assert not nulls(merge(pod()["spec"], template))


fields = st.sampled_from([*MERGE_KEYS, *MERGE_KEYS.values(), "readinessGates", "conditionType", "securityContext"])
anything = st.recursive(
    scalars | st.sampled_from(["worker", "download", READINESS_GATE]),
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
