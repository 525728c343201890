"""A user's pod template is merged over ours as Kubernetes merges a patch."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_operator.manifests.template import MERGE_KEYS, merge
from tests.operator_.manifests.template_kit import pod

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
