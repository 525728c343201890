"""spec.serving.kvEvents becomes a flag, a variable and a door for its subscribers, and nothing where it is not said."""

from __future__ import annotations

import pytest

from dormouse_operator.manifests import pod_digest_of, policy_manifest, worker_arguments
from dormouse_operator.model import Arrows
from dormouse_operator.parse import SpecError
from dormouse_worker.front.flags.settings import parse_settings
from tests.operator_.manifests.test_manifests import deployment, pod

ROUTER = {"podLabels": {"app": "router"}}
ARROWS = Arrows(ingress=(), egress=(), rank_ports=(), rank_egress=())


def told(*subscribers):
    return {"serving": {"kvEvents": {"subscribers": list(subscribers or [ROUTER])}}}


def doors(**spec):
    """Return who may connect to workers, and where."""
    return policy_manifest(deployment(**spec), ARROWS)["spec"]["ingress"]


def variables(**spec):
    return {each["name"]: each for each in pod(**spec)["spec"]["containers"][0]["env"]}


def test_the_worker_reads_from_its_flag_where_it_publishes_what():
    front, _ = parse_settings(worker_arguments(deployment(**told())), {})
    assert front.kv_events.is_on
    assert (front.kv_events.endpoint, front.kv_events.replay_endpoint) == ("tcp://*:5557", "tcp://*:5558")
    assert front.kv_events.topic == "kv@{DORMOUSE_POD_IP}@tiny"


def test_the_worker_knows_its_pods_address_for_the_topic():
    address = variables(**told())["DORMOUSE_POD_IP"]
    assert address["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}


@pytest.mark.parametrize(
    ("subscriber", "peer"),
    [
        (ROUTER, {"podSelector": {"matchLabels": {"app": "router"}}}),
        ({"namespaceLabels": {"team": "a"}}, {"namespaceSelector": {"matchLabels": {"team": "a"}}}),
        (
            {**ROUTER, "namespaceLabels": {"team": "a"}},
            {
                "podSelector": {"matchLabels": {"app": "router"}},
                "namespaceSelector": {"matchLabels": {"team": "a"}},
            },
        ),
        ({"podLabels": {}}, {"podSelector": {}}),
    ],
)
def test_subscribers_may_connect_to_both_ports(subscriber, peer):
    ports = [{"protocol": "TCP", "port": 5557}, {"protocol": "TCP", "port": 5558}]
    assert doors(**told(subscriber)) == [{"from": [peer], "ports": ports}]


def test_without_it_pods_stay_as_they_were():
    assert doors() == []
    assert "DORMOUSE_POD_IP" not in variables()
    assert not [each for each in worker_arguments(deployment()) if each.startswith("--kv-events")]


def test_other_subscribers_replace_no_pod():
    """Who may connect stands in the policy, which is written anew."""
    digests = [
        pod_digest_of(deployment(**spec), "w:1") for spec in ({}, told(), told(ROUTER, {"podLabels": {"a": "b"}}))
    ]
    assert digests[0] != digests[1] == digests[2]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({**told(), "engine": {"enablePrefixCaching": False}}, "needs spec.engine.enablePrefixCaching"),
        ({**told(), "task": "transcribe"}, "needs a spec.task that caches prefixes; transcribe does not"),
        ({"serving": {"kvEvents": {}}}, "subscribers has to name pods by labels"),
        (told({}), "subscribers has to name pods by labels"),
    ],
)
def test_where_the_schema_was_not_enforced_it_is_refused_by_name(spec, words):
    with pytest.raises(SpecError, match=rf"^spec\.serving\.kvEvents.*{words}"):
        deployment(**spec)
