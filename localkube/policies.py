"""NetworkPolicies and pods → which connections of which pod are let through, by address. Pure; `nft` writes it down.

As Kubernetes says it: a pod that no policy of a direction selects may do everything in it. One that is selected may do
what any rule of these policies allows, and nothing else. A connection needs both ends to allow it. IPv4 only, as our
pods are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any, Literal

Labels = Mapping[str, str]
Raw = Mapping[str, Any]
Direction = Literal["Ingress", "Egress"]
DIRECTIONS: tuple[Direction, Direction] = ("Ingress", "Egress")
_PEERS = {"Ingress": "from", "Egress": "to"}


@dataclass(frozen=True, slots=True)
class NamedPort:
    """A port of a container that has a name."""

    name: str
    protocol: str
    number: int


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod with an address of its own."""

    namespace: str
    name: str
    address: str
    labels: Labels
    ports: tuple[NamedPort, ...] = ()
    is_ending: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """One NetworkPolicy."""

    namespace: str
    selector: Raw
    rules: Mapping[Direction, tuple[Raw, ...]]  # of the directions that it speaks of


@dataclass(frozen=True, slots=True)
class Block:
    """The peers of an address range."""

    cidr: str
    excepted: tuple[str, ...] = ()

    def holds(self, address: str) -> bool:
        """Return whether an address is one of them."""
        known = ip_address(address)
        return known in ip_network(self.cidr) and not any(known in ip_network(part) for part in self.excepted)


Peers = tuple[str, ...] | Block | None  # addresses of pods, a range, or anybody


@dataclass(frozen=True, slots=True)
class Allowance:
    """Connections that are let through."""

    peers: Peers
    protocol: str = ""  # "" = all
    ports: tuple[int, int] | None = None  # first and last; None = all


@dataclass(frozen=True, slots=True)
class Guard:
    """What a pod may do in one direction in which it is isolated."""

    direction: Direction
    address: str
    allowances: tuple[Allowance, ...]


def parse_pod(raw: Raw) -> Pod | None:
    """Return the pod; None for one without an address of its own: not started, ended, or in the node's network."""
    spec, status, metadata = raw["spec"], raw.get("status") or {}, raw["metadata"]
    address = status.get("podIP") or ""
    if not address or ":" in address or spec.get("hostNetwork") or status.get("phase") in {"Succeeded", "Failed"}:
        return None
    restarting = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
    ports = [port for each in (*spec["containers"], *restarting) for port in each.get("ports") or ()]
    return Pod(
        metadata["namespace"],
        metadata["name"],
        address,
        metadata.get("labels") or {},
        tuple(NamedPort(p["name"], p.get("protocol", "TCP"), p["containerPort"]) for p in ports if p.get("name")),
        is_ending="deletionTimestamp" in metadata,
    )


def parse_policy(raw: Raw) -> Policy:
    """Return the policy. Without types it is about what comes in, and about what goes out if it has rules for that."""
    spec = raw["spec"]
    types = spec.get("policyTypes") or ["Ingress", *(["Egress"] if spec.get("egress") else [])]
    rules = {direction: tuple(spec.get(direction.lower()) or ()) for direction in DIRECTIONS if direction in types}
    return Policy(raw["metadata"]["namespace"], spec.get("podSelector") or {}, rules)


def selects(selector: Raw, labels: Labels) -> bool:
    """Return whether a label selector takes these labels; an empty one takes all."""
    named = (labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())
    return all(named) and all(_meets(each, labels) for each in selector.get("matchExpressions") or ())


def _meets(expression: Raw, labels: Labels) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[expression["operator"]]


def compile_guards(pods: Iterable[Pod], namespaces: Mapping[str, Labels], policies: Iterable[Policy]) -> list[Guard]:
    """Return what isolated pods may do, by address. `namespaces` are the labels of each.

    Of pods with one address, which a pod that ends can hand on before that is told, the one that stays counts.
    """
    ordered = sorted(pods, key=lambda pod: (not pod.is_ending, pod.namespace, pod.name))
    known = {pod.address: pod for pod in ordered}
    compiler = _Compiler(tuple(known.values()), namespaces)
    policies = list(policies)
    guards = (compiler.guard(pod, direction, policies) for pod in known.values() for direction in DIRECTIONS)
    return [guard for guard in guards if guard]


@dataclass(frozen=True, slots=True)
class _Compiler:
    """Finds the pods that rules speak of."""

    pods: tuple[Pod, ...]
    namespaces: Mapping[str, Labels]

    def guard(self, pod: Pod, direction: Direction, policies: Iterable[Policy]) -> Guard | None:
        """Return what the pod may do, None if it may do everything."""
        isolating = [
            policy
            for policy in policies
            if policy.namespace == pod.namespace and direction in policy.rules and selects(policy.selector, pod.labels)
        ]
        if not isolating:
            return None
        found = dict.fromkeys(
            allowance
            for policy in isolating
            for rule in policy.rules[direction]
            for allowance in self._allowances(pod, direction, policy.namespace, rule)
        )
        return Guard(direction, pod.address, tuple(found))

    def _allowances(self, pod: Pod, direction: Direction, namespace: str, rule: Raw) -> Iterator[Allowance]:
        peers = list(self._peers(namespace, rule.get(_PEERS[direction])))
        for port in rule.get("ports") or ({"protocol": ""},):
            if not isinstance(port.get("port"), str):
                yield from (Allowance(each, port.get("protocol", "TCP"), _span(port)) for each in peers)
            elif direction == "Ingress":  # a name is one of the pod that is called
                numbers = _numbers(pod, port)
                yield from (Allowance(each, port.get("protocol", "TCP"), (n, n)) for each in peers for n in numbers)
            else:
                yield from self._to_named(peers, port)

    def _peers(self, namespace: str, given: Iterable[Raw] | None) -> Iterator[Peers]:
        """Yield whom a rule speaks of: pods together, each range by itself; nobody else."""
        if not given:
            yield None
            return
        chosen = {pod.address for peer in given if "ipBlock" not in peer for pod in self._chosen(namespace, peer)}
        if chosen:
            yield tuple(sorted(chosen, key=ip_address))
        for block in (peer["ipBlock"] for peer in given if peer.get("ipBlock")):
            if ":" not in block["cidr"]:
                yield Block(block["cidr"], tuple(block.get("except") or ()))

    def _chosen(self, namespace: str, peer: Raw) -> Iterator[Pod]:
        """Yield the pods of a peer: of the policy's own namespace unless it selects others."""
        elsewhere = peer.get("namespaceSelector")
        for pod in self.pods:
            is_there = pod.namespace == namespace
            if elsewhere is not None:
                is_there = pod.namespace in self.namespaces and selects(elsewhere, self.namespaces[pod.namespace])
            if is_there and selects(peer.get("podSelector") or {}, pod.labels):
                yield pod

    def _to_named(self, peers: Iterable[Peers], port: Raw) -> Iterator[Allowance]:
        """Yield what a port's name means at each pod that is called."""
        peers = list(peers)
        reached: dict[int, set[str]] = {}
        for pod in self.pods:
            if any(peers_take(each, pod.address) for each in peers):
                for number in _numbers(pod, port):
                    reached.setdefault(number, set()).add(pod.address)
        for number, addresses in sorted(reached.items()):
            yield Allowance(tuple(sorted(addresses, key=ip_address)), port.get("protocol", "TCP"), (number, number))


def peers_take(peers: Peers, address: str) -> bool:
    """Return whether an address is one of the peers."""
    if peers is None:
        return True
    return peers.holds(address) if isinstance(peers, Block) else address in peers


def _numbers(pod: Pod, port: Raw) -> list[int]:
    wanted = (port["port"], port.get("protocol", "TCP"))
    return sorted({named.number for named in pod.ports if (named.name, named.protocol) == wanted})


def _span(port: Raw) -> tuple[int, int] | None:
    first = port.get("port")
    return None if first is None else (first, port.get("endPort") or first)
