"""The kernel lets through what the guards say: every way between pods on one bridge is tried."""

from __future__ import annotations

import pytest

from tests.localkube.cases import PODS, A, B, C, D, guards_of, lets, raw_policy
from tests.localkube.wires import NODE, NODE_SERVICE, SERVICE, Way, wired

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]  # root and nft, as localkube itself needs

PORTS = ((8000, "TCP"), (9000, "TCP"), (53, "UDP"), (8000, "UDP"))
OF_A = {"matchLabels": {"app": "a"}}
BLUE = {"namespaceSelector": {"matchLabels": {"team": "blue"}}}
POLICIES = {
    "none": [],
    "nothing at all": [raw_policy(ingress=[], egress=[]), raw_policy("blue", ingress=[], egress=[])],
    "own namespace": [raw_policy(ingress=[{"from": [{"podSelector": {}}]}])],
    "another namespace, one port": [
        raw_policy(podSelector=OF_A, ingress=[{"from": [BLUE], "ports": [{"port": 8000}]}])
    ],
    "named ports, ranges, UDP": [
        raw_policy(
            podSelector=OF_A, ingress=[{"ports": [{"port": "web"}, {"port": 50, "endPort": 60, "protocol": "UDP"}]}]
        ),
        raw_policy("blue", egress=[{"ports": [{"port": "dns", "protocol": "UDP"}, {"port": 8900, "endPort": 9100}]}]),
    ],
    "ranges of addresses": [
        raw_policy(
            ingress=[{"from": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": [f"{C.address}/32", f"{A.address}/32"]}}]}]
        ),
        raw_policy("blue", egress=[{"to": [{"ipBlock": {"cidr": "10.0.0.0/30"}}], "ports": [{}]}]),
    ],
}


@pytest.fixture(scope="module")
def wires():
    with wired(pod.address for pod in PODS) as made:
        made.make_services(A.address)
        yield made


@pytest.mark.parametrize("policies", POLICIES.values(), ids=POLICIES)
def test_the_kernel_lets_through_what_the_guards_say(wires, policies):
    guards = guards_of(*policies)
    wires.load(guards)
    others = {pod.address: [each.address for each in PODS if each is not pod] for pod in PODS}
    ways = {here: [Way(there, *port) for there in found for port in PORTS] for here, found in others.items()}
    wanted = {(here, way): lets(guards, here, *way) for here, found in ways.items() for way in found}
    assert wires.tried(ways) == wanted


def test_services_lead_nowhere_where_their_pod_may_not_be_reached_and_a_pod_reaches_itself_by_its_own(wires):
    wires.load(guards_of(raw_policy(podSelector=OF_A, ingress=[{"from": [BLUE]}])))
    by_service = Way(SERVICE, 80)
    found = wires.tried({pod.address: [by_service] for pod in (A, B, C)})
    assert found == {(A.address, by_service): True, (B.address, by_service): False, (C.address, by_service): True}


def test_the_node_always_reaches_its_pods_and_is_itself_judged_as_others_are(wires):
    wires.load(guards_of(raw_policy(ingress=[], egress=[{"ports": [{"port": 9000}]}])))
    assert all(wires.tried({NODE: [Way(pod.address, 8000) for pod in PODS]}).values())
    closed, open_ = Way(NODE, 8000), Way(NODE, 9000)
    found = wires.tried({A.address: [closed, open_, Way(NODE_SERVICE, 80)], D.address: [closed]})
    passing = {way for way, passes in found.items() if passes}
    assert passing == {(A.address, open_), (D.address, closed)}
