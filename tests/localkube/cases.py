"""Pods and NetworkPolicies as the API server tells them, without what a test need not state; and what guards let by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from localkube.policies import Direction, Guard, Pod, compile_guards, parse_pod, parse_policy, peers_take

Raw = dict[str, Any]
NAMESPACES = {"red": {"team": "red"}, "blue": {"team": "blue"}}


def raw_pod(name: str, address: str, namespace: str = "red", **changes: Any) -> Raw:
    """Return a pod with the label app=NAME that runs and has ports called web (TCP 8000) and dns (UDP 53)."""
    ports = [{"name": "web", "containerPort": 8000}, {"name": "dns", "containerPort": 53, "protocol": "UDP"}]
    pod: Raw = {
        "metadata": {"namespace": namespace, "name": name, "uid": f"{namespace}/{name}", "labels": {"app": name}},
        "spec": {"containers": [{"ports": ports}, {}]},
        "status": {"podIP": address, "phase": "Running"},
    }
    for part, values in changes.items():
        pod[part] = {**pod[part], **values}
    return pod


def raw_policy(namespace: str = "red", **spec: Any) -> Raw:
    """Return a policy; without a selector it is about all pods of its namespace."""
    spec = {"podSelector": {}, "policyTypes": [name.title() for name in ("ingress", "egress") if name in spec], **spec}
    return {"metadata": {"namespace": namespace, "name": "p", "uid": "policy"}, "spec": spec}


def a_pod(name: str, address: str, namespace: str = "red", **changes: Any) -> Pod:
    """Return such a pod, parsed."""
    pod = parse_pod(raw_pod(name, address, namespace, **changes))
    assert pod is not None
    return pod


A, B = a_pod("a", "10.0.0.1"), a_pod("b", "10.0.0.2")
C, D = a_pod("c", "10.0.0.3", "blue"), a_pod("d", "10.0.0.4", "blue")
PODS = (A, B, C, D)


def guards_of(*policies: Raw, pods: Iterable[Pod] = PODS) -> list[Guard]:
    """Return what these policies make of the pods."""
    return compile_guards(pods, NAMESPACES, [parse_policy(policy) for policy in policies])


def lets(
    guards: Iterable[Guard], source: Pod | str, target: Pod | str, port: int = 8000, protocol: str = "TCP"
) -> bool:
    """Return whether a connection passes, as the tables would: both ends have to let it."""
    here, there = (each if isinstance(each, str) else each.address for each in (source, target))
    guards = list(guards)
    ends: tuple[tuple[Direction, str, str], ...] = (("Egress", here, there), ("Ingress", there, here))
    return here == there or all(_allows(guards, *end, port, protocol) for end in ends)


def _allows(guards: list[Guard], direction: Direction, own: str, other: str, port: int, protocol: str) -> bool:
    found = [guard for guard in guards if (guard.direction, guard.address) == (direction, own)]
    assert len(found) <= 1
    return not found or any(
        peers_take(allowance.peers, other)
        and allowance.protocol in {"", protocol}
        and (allowance.ports is None or allowance.ports[0] <= port <= allowance.ports[1])
        for allowance in found[0].allowances
    )
