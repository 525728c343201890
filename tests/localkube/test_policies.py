"""What a NetworkPolicy means, as Kubernetes documents it."""

from __future__ import annotations

import pytest

from localkube.policies import compile_guards, parse_pod, parse_policy, selects
from tests.localkube.cases import NAMESPACES, PODS, A, B, C, D, a_pod, guards_of, lets, raw_pod, raw_policy

OF_A = {"matchLabels": {"app": "a"}}
OF_B = {"matchLabels": {"app": "b"}}
BLUE = {"matchLabels": {"team": "blue"}}
EVERYWHERE = {"ipBlock": {"cidr": "0.0.0.0/0"}}
OUTSIDE = "192.0.2.1"


def test_without_a_policy_everything_passes():
    assert guards_of() == []
    assert all(lets([], one, other) for one in PODS for other in PODS)


def test_a_selected_pod_is_closed_and_others_are_not():
    guards = guards_of(raw_policy(podSelector=OF_A, ingress=[]))
    assert not lets(guards, B, A)
    assert not lets(guards, OUTSIDE, A)
    assert lets(guards, A, B), "only what comes in was spoken of"
    assert lets(guards, C, B)


def test_what_goes_out_is_closed_by_itself():
    guards = guards_of(raw_policy(podSelector=OF_A, egress=[]))
    assert not lets(guards, A, B)
    assert not lets(guards, A, OUTSIDE)
    assert lets(guards, B, A)


def test_both_ends_have_to_allow_a_connection():
    out = raw_policy(podSelector=OF_A, egress=[{}])
    shut = raw_policy(podSelector=OF_B, ingress=[])
    assert not lets(guards_of(out, shut), A, B)
    assert lets(guards_of(out, shut, raw_policy(podSelector=OF_B, ingress=[{"from": [{"podSelector": OF_A}]}])), A, B)


def test_a_pod_always_reaches_itself():
    assert lets(guards_of(raw_policy(ingress=[], egress=[])), A, A)


def test_policies_add_up():
    first = raw_policy(podSelector=OF_A, ingress=[{"ports": [{"port": 1}]}])
    second = raw_policy(podSelector=OF_A, ingress=[{"ports": [{"port": 2}]}])
    guards = guards_of(first, second)
    assert [lets(guards, B, A, port) for port in (1, 2, 3)] == [True, True, False]


def test_a_policy_is_about_its_own_namespace():
    guards = guards_of(raw_policy("blue", ingress=[]))
    assert lets(guards, C, A)
    assert not lets(guards, A, C)


@pytest.mark.parametrize(
    ("peer", "let_in"),
    [
        ({"podSelector": {}}, "b"),
        ({"podSelector": OF_B}, "b"),
        ({"podSelector": {"matchLabels": {"app": "c"}}}, ""),
        ({"namespaceSelector": {}}, "b c d"),
        ({"namespaceSelector": BLUE}, "c d"),
        ({"namespaceSelector": BLUE, "podSelector": {"matchLabels": {"app": "d"}}}, "d"),
        ({"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "d"}}}, "d"),
        ({"namespaceSelector": {"matchLabels": {"team": "green"}}}, ""),
        (EVERYWHERE, "b c d outside"),
        ({"ipBlock": {"cidr": "10.0.0.0/30"}}, "b c"),
        ({"ipBlock": {"cidr": "10.0.0.0/24", "except": ["10.0.0.3/32", "10.0.0.4/32"]}}, "b"),
        ({"ipBlock": {"cidr": "fd00::/8"}}, ""),
    ],
    ids=str,
)
def test_who_is_let_in(peer, let_in):
    guards = guards_of(raw_policy(podSelector=OF_A, ingress=[{"from": [peer]}]))
    tried = {"b": B, "c": C, "d": D, "outside": OUTSIDE}
    assert " ".join(name for name, each in tried.items() if lets(guards, each, A)) == let_in


def test_each_peer_of_a_rule_is_let_in():
    peers = [{"podSelector": OF_B}, {"namespaceSelector": BLUE, "podSelector": {"matchLabels": {"app": "c"}}}]
    guards = guards_of(
        raw_policy(podSelector=OF_A, ingress=[{"from": [*peers, {"ipBlock": {"cidr": f"{OUTSIDE}/32"}}]}])
    )
    assert [lets(guards, each, A) for each in (B, C, D, OUTSIDE)] == [True, True, False, True]


@pytest.mark.parametrize(
    ("ports", "let_in"),
    [
        ([{"port": 8000}], {("TCP", 8000)}),
        ([{"port": 8000, "protocol": "UDP"}], {("UDP", 8000)}),
        ([{"port": 8000, "protocol": "SCTP"}], {("SCTP", 8000)}),
        ([{"port": 53}, {"port": 53, "protocol": "UDP"}], {("TCP", 53), ("UDP", 53)}),
        ([{"port": 7999, "endPort": 8000}], {("TCP", 8000)}),
        ([{"port": 50, "endPort": 60, "protocol": "UDP"}], {("UDP", 53)}),
        ([{"port": "web"}], {("TCP", 8000)}),
        ([{"port": "dns", "protocol": "UDP"}], {("UDP", 53)}),
        ([{"port": "dns"}], set()),
        ([{"port": "none"}], set()),
        ([{}], {("TCP", 53), ("TCP", 8000)}),
        ([{"protocol": "UDP"}], {("UDP", 53), ("UDP", 8000)}),
        ([], {(protocol, port) for protocol in ("TCP", "UDP", "SCTP") for port in (53, 8000)}),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),  # a set's own order is another each time
)
@pytest.mark.parametrize("direction", ["ingress", "egress"])
def test_at_which_ports(direction, ports, let_in):
    guards = guards_of(raw_policy(podSelector=OF_A, **{direction: [{"ports": ports}]}))
    ends = (B, A) if direction == "ingress" else (A, B)
    tried = {(protocol, port) for protocol in ("TCP", "UDP", "SCTP") for port in (53, 8000)}
    assert {(protocol, port) for protocol, port in tried if lets(guards, *ends, port, protocol)} == let_in


def test_a_ports_name_means_what_each_called_pod_calls_so():
    elsewhere = [{"ports": [{"name": "web", "containerPort": 9000}]}]
    other = a_pod("other", "10.0.0.9", spec={"containers": elsewhere})
    guards = guards_of(raw_policy(egress=[{"ports": [{"port": "web"}]}]), pods=[A, B, other])
    assert lets(guards, A, other, 9000)
    assert not lets(guards, A, other, 8000)
    assert lets(guards, A, B, 8000)
    assert not lets(guards, A, B, 9000)


@pytest.mark.parametrize(
    "peer", [{"podSelector": OF_B}, {"ipBlock": {"cidr": "10.0.0.0/24", "except": ["10.0.0.3/32", "10.0.0.4/32"]}}]
)
def test_a_ports_name_counts_at_the_pods_that_a_rule_speaks_of(peer):
    guards = guards_of(raw_policy(podSelector=OF_A, egress=[{"to": [peer], "ports": [{"port": "web"}]}]))
    assert [lets(guards, A, each) for each in (B, C, OUTSIDE)] == [True, False, False]


@pytest.mark.parametrize(
    ("spec", "is_in_closed", "is_out_closed"),
    [
        ({}, True, False),
        ({"ingress": [{}]}, False, False),
        ({"egress": [{}]}, True, False),
        ({"egress": [{"ports": [{"port": 1}]}]}, True, True),
        ({"policyTypes": ["Egress"]}, False, True),
        ({"policyTypes": ["Ingress", "Egress"], "ingress": [{}], "egress": None}, False, True),
    ],
    ids=str,
)
def test_without_types_a_policy_is_about_what_comes_in_and_of_what_goes_out_if_it_says_so(
    spec, is_in_closed, is_out_closed
):
    policy = {"metadata": {"namespace": "red"}, "spec": {"podSelector": OF_A, **spec}}
    guards = compile_guards(PODS, NAMESPACES, [parse_policy(policy)])
    assert (not lets(guards, B, A), not lets(guards, A, B)) == (is_in_closed, is_out_closed)


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ({"key": "app", "operator": "In", "values": ["a", "b"]}, "ab"),
        ({"key": "app", "operator": "NotIn", "values": ["a", "b"]}, "cx"),
        ({"key": "app", "operator": "Exists"}, "abc"),
        ({"key": "app", "operator": "DoesNotExist"}, "x"),
    ],
)
def test_expressions_select_by_what_a_label_is_and_whether_it_is_there(expression, names):
    labels = {"a": {"app": "a"}, "b": {"app": "b"}, "c": {"app": "c"}, "x": {"other": "a"}}
    found = [name for name, own in labels.items() if selects({"matchExpressions": [expression]}, own)]
    assert found == list(names)
    assert not selects({"matchLabels": {"app": "z"}, "matchExpressions": [expression]}, {"app": "a"})


@pytest.mark.parametrize(
    "changes",
    [
        {"status": {"podIP": ""}},
        {"status": {"podIP": "fd00::1"}},
        {"status": {"phase": "Succeeded"}},
        {"status": {"phase": "Failed"}},
        {"spec": {"hostNetwork": True}},
    ],
    ids=str,
)
def test_a_pod_without_an_address_of_its_own_is_none(changes):
    assert parse_pod(raw_pod("a", "10.0.0.1", **changes)) is None


def test_a_pod_that_was_never_looked_at_by_a_kubelet_is_none():
    assert parse_pod({**raw_pod("a", "10.0.0.1"), "status": None}) is None


def test_ports_of_sidecars_have_names_too():
    sidecar = {"restartPolicy": "Always", "ports": [{"name": "side", "containerPort": 1}]}
    once = {"ports": [{"name": "once", "containerPort": 2}]}
    pod = a_pod("a", "10.0.0.1", spec={"initContainers": [sidecar, once]})
    assert {port.name for port in pod.ports} == {"web", "dns", "side"}


def test_an_address_that_an_ending_pod_hands_on_is_the_new_pods():
    ending = a_pod("zz", "10.0.0.1", metadata={"deletionTimestamp": "now", "namespace": "red", "name": "zz"})
    guards = guards_of(raw_policy(podSelector=OF_A, ingress=[]), pods=[ending, A, B])
    assert [guard.address for guard in guards] == [A.address]
    assert [guard.address for guard in guards_of(raw_policy(podSelector=OF_A, ingress=[]), pods=[A, B, ending])] == [
        A.address
    ]


def test_a_rule_that_two_policies_have_is_there_once():
    rule = {"from": [{"podSelector": OF_B}], "ports": [{"port": 1}]}
    (guard,) = guards_of(*[raw_policy(podSelector=OF_A, ingress=[rule, rule])] * 2)
    assert len(guard.allowances) == 1


def test_a_namespace_that_was_not_told_yet_is_selected_by_nobody():
    policy = parse_policy(raw_policy(podSelector=OF_A, ingress=[{"from": [{"namespaceSelector": {}}]}]))
    assert not lets(compile_guards(PODS, {"red": {}}, [policy]), C, A)
