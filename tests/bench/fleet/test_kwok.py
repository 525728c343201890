"""What KWOK is told: a pod has at most one next stage, nodes share no address. And which build is used."""

from __future__ import annotations

import ipaddress
import itertools
import json

import pytest

from bench.fleet import kwok_build
from bench.fleet.cluster import Cluster, audit_policy, with_token
from bench.fleet.kwok_stages import ANNOTATION, PODS_PER_NODE, configuration, nodes, stages
from bench.fleet.options import MOST
from bench.fleet.sandbox import POD_CIDR
from dormouse_api.names import READINESS_GATE
from localkube.build import digest_of
from localkube.spec import Paths


def look_up(pod, key):
    """Answer the five kinds of question that the stages ask."""
    if key.startswith((".metadata", ".status.podIP")):
        _, part, name = key.split(".")
        return pod[part].get(name)
    wanted = next(name for name in (READINESS_GATE, "Ready", "ContainersReady") if f'"{name}"' in key)
    return pod["status"]["conditions"].get(wanted)


def fits(stage, pod):
    def holds(expression):
        found = look_up(pod, expression["key"])
        match expression["operator"]:
            case "Exists":
                return found is not None
            case "DoesNotExist":
                return found is None
            case "In":
                return found in expression["values"]
            case "NotIn":
                return found not in expression["values"]

    return all(map(holds, stage["spec"]["selector"]["matchExpressions"]))


def next_stages(*, deleting=None, ip=None, gate=None, ready=None, probed="True"):
    pod = {
        "metadata": {"deletionTimestamp": deleting},
        "status": {"podIP": ip, "conditions": {READINESS_GATE: gate, "Ready": ready, "ContainersReady": probed}},
    }
    of_pods = (stage for stage in stages() if stage["spec"]["resourceRef"]["kind"] == "Pod")
    return [stage["metadata"]["name"] for stage in of_pods if fits(stage, pod)]


def test_a_pod_runs_then_follows_its_gate_both_ways_and_goes_when_it_must():
    assert next_stages() == ["pod-runs"]
    assert next_stages(ip="10.200.0.1", ready="False") == []
    assert next_stages(ip="10.200.0.1", ready="False", gate="True") == ["pod-ready"]
    assert next_stages(ip="10.200.0.1", ready="True", gate="True") == []
    assert next_stages(ip="10.200.0.1", ready="True", gate="False") == ["pod-unready"]
    assert next_stages(ip="10.200.0.1", ready="True", gate="True", deleting="now") == ["pod-gone"]


def test_a_pod_is_not_ready_while_its_container_is_not():
    assert next_stages(ip="10.200.0.1", ready="True", gate="True", probed="False") == ["pod-fails"]
    assert next_stages(ip="10.200.0.1", ready="False", gate="True", probed="False") == []
    assert next_stages(ip="10.200.0.1", ready="True", gate="False", probed="False") == ["pod-unready"]


def test_no_pod_has_two_next_stages():
    flags = (None, "True", "False")
    choices = itertools.product((None, "now"), (None, "10.200.0.1"), flags, flags, flags)
    for deleting, ip, gate, ready, probed in choices:
        if ip is not None or ready is None:  # without an address nothing was ready yet
            assert len(next_stages(deleting=deleting, ip=ip, gate=gate, ready=ready, probed=probed)) <= 1


def test_the_configuration_is_a_list_of_documents_that_begins_with_the_options():
    documents = [json.loads(text) for text in configuration().split("\n---\n")]
    assert [document["kind"] for document in documents] == ["KwokConfiguration", *["Stage"] * len(stages())]
    assert min(documents[0]["options"].values()) > 0  # KWOK refuses a parallelism of none


def test_the_largest_run_has_a_place_and_an_address_for_every_pod():
    made = nodes(2 * MOST, POD_CIDR)
    ranges = [ipaddress.ip_network(node["spec"]["podCIDR"]) for node in made]
    assert len(made) * PODS_PER_NODE >= 2 * MOST
    assert min(part.num_addresses for part in ranges) > PODS_PER_NODE
    assert not any(one.overlaps(other) for one, other in itertools.combinations(ranges, 2))
    assert all(part.subnet_of(ipaddress.ip_network(POD_CIDR)) for part in ranges)
    assert all(node["metadata"]["annotations"] == ANNOTATION for node in made)


def test_an_address_range_that_is_too_small_is_named():
    with pytest.raises(ValueError, match=r"cidr is 10.0.0.0/22; it has room for 1 nodes, 2 are needed for 1001 pods"):
        nodes(1001, "10.0.0.0/22")


def test_a_build_of_the_same_sources_is_used_again(tmp_path):
    files = ((name, (kwok_build.MODULE_DIR / name).read_bytes()) for name in ("go.mod", "go.sum"))
    program = tmp_path / "bin" / digest_of(files) / "kwok"
    program.parent.mkdir(parents=True)
    program.touch()
    assert kwok_build.build(tmp_path, pytest.fail) == program


def test_every_component_of_localkube_that_is_started_is_there(tmp_path):
    cluster = Cluster(Paths(tmp_path), tmp_path, tmp_path / "kwok")
    assert [component.name for component in cluster.components()] == ["etcd", "kube-apiserver", "kube-scheduler"]


def test_only_the_operators_writes_are_recorded():
    recorded, rest = json.loads(audit_policy())["rules"]
    assert recorded["users"] == ["system:serviceaccount:dormouse-system:dormouse-operator"]
    assert "get" not in recorded["verbs"]
    assert rest == {"level": "None"}


def test_the_operator_logs_in_with_its_token_and_no_certificate():
    admin = {"users": [{"name": "admin", "user": {"client-key-data": "secret"}}], "current-context": "x"}
    assert json.loads(with_token(admin, "token")) == {**admin, "users": [{"name": "admin", "user": {"token": "token"}}]}
