"""Guards → one nftables table, whole, as text for `nft -f`: it replaces the one before in one step. Pure.

    forward   what goes from pod to pod: frames on the bridge (br_netfilter), and what is routed
    input     what goes from a pod to its node: the API server, the name server

What a node sends never meets these hooks, so probes always pass; nor do replies, which belong to what was let through.
Services are resolved before (kube-proxy's DNAT comes first), so addresses and ports are those of pods.
"""

from __future__ import annotations

from collections.abc import Iterable

from localkube import spec
from localkube.policies import DIRECTIONS, Allowance, Block, Direction, Guard, Peers

TABLE = "localkube-policies"
FAMILY = "inet"
_FIELD = {"Ingress": "ip saddr", "Egress": "ip daddr"}
_REPLIES = "ct state established,related accept"
Chains = dict[tuple[Direction, tuple[Allowance, ...]], str]  # pods that may do the same share one


def table(guards: Iterable[Guard], nodes: Iterable[str] = (spec.NODE_IP, spec.SECOND_IP)) -> str:
    """Return the commands. `nodes` are addresses from which pods are always reached."""
    guards = list(guards)
    chains: Chains = {}
    for guard in guards:
        chains.setdefault((guard.direction, guard.allowances), f"{guard.direction.lower()}-{len(chains)}")
    verdicts = {direction: _verdicts(guards, direction, chains) for direction in DIRECTIONS}
    lines = [
        *_named("set", "itself", "ipv4_addr . ipv4_addr", sorted({f"{g.address} . {g.address}" for g in guards})),
        *(line for each in DIRECTIONS for line in _named("map", each.lower(), "ipv4_addr : verdict", verdicts[each])),
        *(line for (direction, allowances), name in chains.items() for line in _chain(name, direction, allowances)),
        *_hook("forward", _REPLIES, _NO_IPV6, "ip saddr . ip daddr @itself accept", _OUT, *_in(nodes)),
        *_hook("input", _REPLIES, _OUT),
    ]
    body = "\n".join(lines)
    return f"add table {FAMILY} {TABLE}\ndelete table {FAMILY} {TABLE}\ntable {FAMILY} {TABLE} {{\n{body}\n}}\n"


_OUT = "ip saddr vmap @egress"
_NO_IPV6 = f'meta nfproto ipv6 iifname "{spec.BRIDGE}" oifname "{spec.BRIDGE}" drop'  # link-local: no policy knows it


def _in(nodes: Iterable[str]) -> tuple[str, str]:
    return f"ip saddr {{ {', '.join(nodes)} }} accept", "ip daddr vmap @ingress"


def _verdicts(guards: Iterable[Guard], direction: Direction, chains: Chains) -> list[str]:
    ours = (guard for guard in guards if guard.direction == direction)
    return [f"{guard.address} : jump {chains[direction, guard.allowances]}" for guard in ours]


def _named(kind: str, name: str, type_: str, elements: list[str]) -> list[str]:
    """Return a set or a map; nft takes no empty list of elements."""
    listed = [f"    elements = {{ {', '.join(elements)} }}"] if elements else []
    return [f"  {kind} {name} {{", f"    type {type_}", *listed, "  }"]


def _chain(name: str, direction: Direction, allowances: Iterable[Allowance]) -> list[str]:
    rules = (f"    {_match(direction, allowance)}return" for allowance in allowances)
    return [f"  chain {name} {{", *rules, "    counter drop", "  }"]


def _hook(name: str, *rules: str) -> list[str]:
    head = f"    type filter hook {name} priority filter; policy accept"
    return [f"  chain {name} {{", head, *(f"    {rule}" for rule in rules), "  }"]


def _match(direction: Direction, allowance: Allowance) -> str:
    words = [*_of_peers(_FIELD[direction], allowance.peers), *_of_ports(allowance)]
    return "".join(f"{word} " for word in words)


def _of_peers(field: str, peers: Peers) -> list[str]:
    if peers is None:
        return []
    if not isinstance(peers, Block):
        return [f"{field} {{ {', '.join(peers)} }}"]
    excepted = [f"{field} != {cidr}" for cidr in peers.excepted if ":" not in cidr]
    return [f"{field} {peers.cidr}", *excepted]


def _of_ports(allowance: Allowance) -> list[str]:
    protocol = allowance.protocol.lower()
    if not protocol:
        return []
    if allowance.ports is None:
        return [f"meta l4proto {protocol}"]
    first, last = allowance.ports
    return [f"{protocol} dport {first}" if first == last else f"{protocol} dport {first}-{last}"]
