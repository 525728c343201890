"""What a replica of several ranks asks of the cluster: pods that find each other, GPUs, a budget; what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dormouse_operator.manifests import (
    WorkerDefaults,
    budget_manifest,
    parse_ranks_service,
    pod_digest_of,
    pod_manifest,
    ranks_complaint,
    ranks_service_manifest,
    revision_of,
    selector_labels,
    worker_arguments,
)
from dormouse_operator.parse import SpecError, parse_deployment, parse_pod, parse_pods

DEFAULTS = WorkerDefaults("IfNotPresent", "aa", "bb")
GPU = "nvidia.com/gpu"


def deployment(tensor=1, pipeline=1, device="cpu", **spec):
    metadata = {"namespace": "team", "name": "tiny", "uid": "u1"}
    shared = {"tensor": tensor, "pipeline": pipeline, **spec.pop("parallelism", {})}
    body = {"model": {"uri": "pvc://models/tiny"}, "engine": {"device": device}, "parallelism": shared, **spec}
    return parse_deployment({"metadata": metadata, "spec": body})


def leader(wanted):
    return pod_manifest(wanted, image="worker:1", index=2, defaults=DEFAULTS)


def follower(wanted, ordinal=1):
    made = leader(wanted)
    made["metadata"]["uid"] = "uid-leader"
    return pod_manifest(wanted, image="worker:1", index=2, defaults=DEFAULTS, leader=parse_pod(made), ordinal=ordinal)


def flags(pod):
    return dict(flag.split("=", 1) for flag in pod["spec"]["containers"][0]["args"] if "=" in flag)


def variables(pod):
    return {item["name"]: item.get("value") for item in pod["spec"]["containers"][0]["env"]}


def test_one_rank_is_what_it_was_before_there_were_more_byte_for_byte():
    """Digests of an earlier release: an upgrade of the operator must restart no pod."""
    plain = parse_deployment(
        {
            "metadata": {"namespace": "team", "name": "tiny", "uid": "u1"},
            "spec": {"model": {"uri": "pvc://models/tiny"}},
        }
    )
    assert (revision_of(plain, "worker:1"), pod_digest_of(plain, "worker:1")) == ("7972a1d9", "cd149458")
    named = deployment(device="cuda", parallelism={"schedulingDeadlineSeconds": 5})
    assert leader(named) == leader(plain)
    labels, spec = leader(plain)["metadata"]["labels"], leader(plain)["spec"]
    assert not [name for name in labels if "rank" in name or "group" in name or "worker-index" in name]
    assert not {"hostname", "subdomain", "affinity"} & spec.keys()
    assert not [flag for flag in worker_arguments(plain) if "parallel" in flag or "master" in flag]
    assert "DORMOUSE_GROUP_ID" not in variables(leader(plain))


@pytest.mark.parametrize(
    "change", [{"tensor": 2}, {"pipeline": 2}, {"pipeline": 2, "parallelism": {"topologyKey": "a"}}]
)
def test_other_ranks_are_other_pods(change):
    assert pod_digest_of(deployment(**change), "i") not in {
        pod_digest_of(deployment(), "i"),
        pod_digest_of(deployment(pipeline=2, parallelism={"topologyKey": "b"}), "i"),
    }


def test_ranks_of_one_pod_are_a_flag_and_as_many_gpus():
    pod = leader(deployment(tensor=4, device="cuda"))
    assert flags(pod)["--tensor-parallel-size"] == "4"
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {GPU: 4}
    assert parse_pod({**pod, "metadata": {**pod["metadata"], "uid": "u"}}).num_ranks == 4
    assert "DORMOUSE_GROUP_ID" not in variables(pod)
    assert pod["metadata"]["labels"].items() >= selector_labels("tiny").items()
    assert leader(deployment(tensor=4))["spec"]["containers"][0]["resources"] == {}


def test_the_pods_of_a_group_are_told_their_place_and_where_to_meet():
    wanted = deployment(tensor=2, pipeline=3)
    first, last = leader(wanted), follower(wanted, 2)
    assert last["metadata"]["name"] == f"{first['metadata']['name']}-2"
    for ordinal, pod in ((0, first), (2, last)):
        assert flags(pod)["--node-rank"] == str(ordinal)
        assert flags(pod)["--tensor-parallel-size"] == "2"
        assert flags(pod)["--pipeline-parallel-size"] == "3"
        assert flags(pod)["--master-addr"] == f"{first['metadata']['name']}.tiny-ranks.team.svc"
        assert flags(pod)["--master-port"] == "29500"
        assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == (pod["metadata"]["name"], "tiny-ranks")
    parsed = parse_pod(last | {"metadata": {**last["metadata"], "uid": "u"}})
    assert (parsed.index, parsed.ordinal, parsed.group_size, parsed.num_ranks) == (2, 2, 3, 6)
    assert parsed.leader_uid == "uid-leader"


def test_a_group_goes_by_its_leaders_uid_so_that_a_later_one_of_the_same_names_is_another():
    wanted = deployment(pipeline=2)
    revision = revision_of(wanted, "worker:1")
    assert variables(leader(wanted))["DORMOUSE_GROUP_ID"] == f"u1/{revision}/2/$(DORMOUSE_POD_UID)"
    assert variables(follower(wanted))["DORMOUSE_GROUP_ID"] == f"u1/{revision}/2/uid-leader"
    names = list(variables(leader(wanted)))
    assert names.index("DORMOUSE_POD_UID") < names.index("DORMOUSE_GROUP_ID"), "the kubelet expands what it knows"


def test_clients_never_reach_a_follower_and_the_kubelet_asks_whether_its_ranks_were_welcomed():
    pod = follower(deployment(pipeline=2))
    labels = pod["metadata"]["labels"]
    assert not selector_labels("tiny").items() <= labels.items()
    assert pod["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_followers_stay_near_their_leader_where_a_topology_is_named():
    near = follower(deployment(pipeline=2, parallelism={"topologyKey": "rack"}))["spec"]["affinity"]["podAffinity"]
    (term,) = near["requiredDuringSchedulingIgnoredDuringExecution"]
    first = leader(deployment(pipeline=2, parallelism={"topologyKey": "rack"}))
    assert term["topologyKey"] == "rack"
    assert term["labelSelector"]["matchLabels"].items() <= first["metadata"]["labels"].items()
    assert "affinity" not in first["spec"]
    assert "affinity" not in follower(deployment(pipeline=2))["spec"]


def test_the_users_template_wins_over_the_affinity():
    mine = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}
    wanted = deployment(pipeline=2, parallelism={"topologyKey": "rack"}, template={"spec": {"affinity": mine}})
    assert follower(wanted)["spec"]["affinity"] == mine


def test_the_ranks_service_has_names_before_pods_are_ready():
    made = ranks_service_manifest(deployment(pipeline=2))
    assert made["metadata"]["name"] == "tiny-ranks"
    assert made["spec"]["clusterIP"] == "None"
    assert made["spec"]["publishNotReadyAddresses"] is True
    for pod in (leader(deployment(pipeline=2)), follower(deployment(pipeline=2))):
        assert made["spec"]["selector"].items() <= pod["metadata"]["labels"].items()


@pytest.mark.parametrize("change", [{"publishNotReadyAddresses": False}, {"selector": {}}, {"ports": []}])
def test_a_ranks_service_that_was_changed_is_not_current(change):
    wanted = deployment(pipeline=2)
    made = ranks_service_manifest(wanted)
    assert parse_ranks_service(made, wanted).is_current
    assert not parse_ranks_service({**made, "spec": {**made["spec"], **change}}, wanted).is_current
    assert parse_ranks_service(None, wanted) is None


def test_a_budget_of_groups_lets_one_pod_go_and_then_waits_for_its_group():
    spec = budget_manifest(deployment(pipeline=3), 4)["spec"]
    assert spec["minAvailable"] == 11
    assert "maxUnavailable" not in spec
    (components,) = spec["selector"]["matchExpressions"]
    assert sorted(components["values"]) == ["follower", "worker"]


COMPLAINTS = {
    "another number of GPUs": (
        {"tensor": 2, "device": "cuda", "resources": {"limits": {GPU: 1}}},
        f"spec.resources.limits[{GPU}] is 1; spec.parallelism.tensor is 2, so each pod needs 2",
    ),
    "another request": (
        {"tensor": 2, "pipeline": 2, "device": "cuda", "resources": {"requests": {GPU: "4"}}},
        f"spec.resources.requests[{GPU}] is 4; spec.parallelism.tensor is 2",
    ),
    "too many ranks": ({"tensor": 8, "replicas": 126}, "126 replicas x tensor 8 x pipeline 1 = 1008 ranks"),
    "too many ranks to come": ({"tensor": 8, "scaling": {"maxReplicas": 500}}, "500 replicas x tensor 8"),
    "a host name": ({"pipeline": 2, "template": {"spec": {"hostname": "x"}}}, "spec.template.spec.hostname is set"),
    "a subdomain": ({"pipeline": 2, "template": {"spec": {"subdomain": "x"}}}, "spec.template.spec.subdomain is set"),
}


@pytest.mark.parametrize(("change", "words"), COMPLAINTS.values(), ids=COMPLAINTS)
def test_what_can_not_be_is_refused_with_the_numbers(change, words):
    wanted = deployment(**change)
    assert words in ranks_complaint(wanted, wanted.replicas)


@pytest.mark.parametrize(
    "change",
    [
        {"resources": {"limits": {GPU: 2}}, "device": "cuda"},
        {"tensor": 2, "device": "cuda", "resources": {"limits": {GPU: "2", "cpu": 1}, "requests": {GPU: 2}}},
        {"tensor": 2, "resources": {"limits": {"cpu": 1}}},
        {"tensor": 2, "template": {"spec": {"hostname": "x"}}},
        {"tensor": 8, "replicas": 125},
    ],
)
def test_what_can_be_is_not_refused(change):
    wanted = deployment(**change)
    assert ranks_complaint(wanted, wanted.replicas) == ""


@pytest.mark.parametrize(("name", "size"), [("tensor", 0), ("pipeline", 65)])
def test_sizes_out_of_bounds_are_named_with_their_limits(name, size):
    with pytest.raises(SpecError, match=f"spec.parallelism.{name} is {size}; allowed are 1 to 64"):
        deployment(**{name: size})


def test_a_pod_that_is_neither_worker_nor_follower_is_none_of_ours():
    raw = {"metadata": {"name": "a", "uid": "u", "labels": {"app.kubernetes.io/component": "x"}}}
    bare = {"metadata": {"name": "b", "uid": "v"}}
    assert parse_pods([raw, bare]) == ((), {}, ())


def test_odd_labels_make_a_pod_of_its_own():
    pod = leader(deployment(pipeline=2))
    labels = {name: "x" if "group-size" in name else value for name, value in pod["metadata"]["labels"].items()}
    parsed = parse_pod({**pod, "metadata": {**pod["metadata"], "uid": "u", "labels": labels}})
    assert parsed.group_size == 1
    assert replace(parsed, group_size=2) == parse_pod({**pod, "metadata": {**pod["metadata"], "uid": "u"}})
