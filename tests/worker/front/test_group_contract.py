"""What the operator writes into the pods of a group is what their workers read."""

from __future__ import annotations

import pytest

from dormouse_api.names import Role
from dormouse_api.testing_tickets import public_key
from dormouse_operator.manifests import WorkerDefaults, pod_manifest
from dormouse_operator.parse import parse_deployment, parse_pod
from dormouse_worker.common.group import identity_of
from dormouse_worker.common.layout import Layout
from dormouse_worker.executor.ranks.admission import Expected, refusal_of
from dormouse_worker.executor.ranks.handshake import make_hello
from dormouse_worker.front.flags.settings import parse_settings

DEFAULTS = WorkerDefaults("IfNotPresent", public_key(Role.OPERATOR), public_key(Role.GATEWAY))
LEADER_UID = "uid-of-the-leader"
FIELDS = {"metadata.uid": "uid", "metadata.name": "name"}


def pods_of(tensor, pipeline):
    """Return the manifests of one group, as the API server would have them."""
    wanted = parse_deployment(
        {
            "metadata": {"namespace": "team", "name": "tiny", "uid": "u1"},
            "spec": {
                "model": {"uri": "pvc://models/tiny"},
                "engine": {"device": "cpu"},
                "parallelism": {"tensor": tensor, "pipeline": pipeline},
            },
        }
    )

    def make(**place):
        return pod_manifest(wanted, image="worker:1", index=0, defaults=DEFAULTS, **place)

    leader = make()
    leader["metadata"]["uid"] = LEADER_UID
    followers = [make(leader=parse_pod(leader), ordinal=ordinal) for ordinal in range(1, pipeline)]
    for follower in followers:
        follower["metadata"]["uid"] = f"uid-of-{follower['metadata']['name']}"
    return [leader, *followers]


def environment_of(pod):
    """Return the variables as the kubelet makes them: fields looked up, names of earlier ones expanded."""
    known = {"HOSTNAME": "the-nodes-own"}
    for item in pod["spec"]["containers"][0]["env"]:
        source = item.get("valueFrom")
        value = pod["metadata"][FIELDS[source["fieldRef"]["fieldPath"]]] if source else item["value"]
        for name, text in known.items():
            value = value.replace(f"$({name})", text)
        known[item["name"]] = value
    return known


def settings_of(pod):
    return parse_settings(pod["spec"]["containers"][0]["args"], environment_of(pod))


@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 2), (2, 3)])
def test_every_pod_finds_its_place_and_its_leader(tensor, pipeline):
    for ordinal, pod in enumerate(pods_of(tensor, pipeline)):
        front, engine = settings_of(pod)
        place = front.place
        assert (place.node_rank, place.num_nodes, place.leads) == (ordinal, pipeline, ordinal == 0)
        assert (engine.tensor_parallel_size, engine.pipeline_parallel_size) == (tensor, pipeline)
        leader = pods_of(tensor, pipeline)[0]
        host = f"{leader['spec']['hostname']}.{leader['spec']['subdomain']}.team.svc"
        assert (place.master_addr, place.master_port, place.message_port) == (host, 29500, 29501)
        assert front.place.rank_timeout_s < front.engine_timeout_s


def test_the_ranks_of_one_pod_need_no_names():
    [pod] = pods_of(2, 1)
    front, engine = settings_of(pod)
    assert (front.place.leads, front.place.num_nodes, front.place.master_addr) == (True, 1, "")
    assert Layout(engine.tensor_parallel_size, engine.pipeline_parallel_size).world_size == 2


def test_a_leader_welcomes_the_ranks_that_were_made_for_it_and_names_their_pods():
    leader, follower = pods_of(1, 2)
    expected = Expected(1, 2, make_hello(0, settings_of(leader)[1], environment_of(leader)))
    hello = make_hello(1, settings_of(follower)[1], environment_of(follower))
    assert refusal_of(hello, expected, {0}) == ""
    assert hello.pod == follower["metadata"]["name"]
    assert identity_of(environment_of(leader))[1] == leader["metadata"]["name"]


def test_a_leader_refuses_a_rank_of_the_group_that_had_its_name_before():
    leader, follower = pods_of(1, 2)
    again = {**leader, "metadata": {**leader["metadata"], "uid": "another"}}
    expected = Expected(1, 2, make_hello(0, settings_of(again)[1], environment_of(again)))
    hello = make_hello(1, settings_of(follower)[1], environment_of(follower))
    assert "its group id is" in refusal_of(hello, expected, {0})
