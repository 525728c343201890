"""What KWOK does to fake nodes and to worker pods, as its configuration; and the fake nodes. Pure.

A pod that has a node runs at once, with an address and a container that is ready. As a kubelet does, `Ready` follows
the operator's readiness gate, and whoever probes the container (`ContainersReady`). A pod that is being deleted goes at
once.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable, Mapping
from typing import Any

from dormouse_api.names import READINESS_GATE

Document = dict[str, Any]

ANNOTATION = {"kwok.x-k8s.io/node": "fake"}
PODS_PER_NODE = 1000
PREFIX = 22  # 1,024 addresses for the pods of a node
PARALLELISM = 16  # pods whose next stage is played at the same time

_RUNNING = """
{{ $now := Now }}
conditions:
- {type: Initialized, status: "True", lastTransitionTime: {{ $now | Quote }}}
- {type: ContainersReady, status: "True", lastTransitionTime: {{ $now | Quote }}}
- {type: Ready, status: "False", reason: ReadinessGatesNotReady, lastTransitionTime: {{ $now | Quote }}}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  ready: true
  started: true
  restartCount: 0
  state: {running: {startedAt: {{ $now | Quote }}}}
{{ end }}
hostIP: {{ NodeIPWith .spec.nodeName | Quote }}
podIP: {{ PodIPWith .spec.nodeName false .metadata.uid .metadata.name .metadata.namespace | Quote }}
phase: Running
startTime: {{ $now | Quote }}
"""
_READY = """
conditions:
- {type: Ready, status: "%s", reason: "%s", lastTransitionTime: {{ Now | Quote }}}
"""
_NODE = """
conditions:
- type: Ready
  status: "True"
  reason: KubeletReady
  message: ""
  lastTransitionTime: {{ Now | Quote }}
  lastHeartbeatTime: {{ Now | Quote }}
addresses:
- {type: InternalIP, address: {{ NodeIP | Quote }}}
allocatable: {cpu: "100000", memory: 1000Ti, ephemeral-storage: 1000Ti, pods: "%(pods)d", nvidia.com/gpu: "%(pods)d"}
capacity: {cpu: "100000", memory: 1000Ti, ephemeral-storage: 1000Ti, pods: "%(pods)d", nvidia.com/gpu: "%(pods)d"}
phase: Running
"""


def configuration() -> str:
    """Return KWOK's configuration file, one JSON document after the other."""
    options = {"podPlayStageParallelism": PARALLELISM, "nodePlayStageParallelism": 4, "podsOnNodeSyncParallelism": 4}
    settings = {"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration", "options": options}
    return "\n---\n".join(json.dumps(document, indent=1) for document in [settings, *stages()]) + "\n"


def stages() -> list[Document]:
    """Return the stages; at most one fits a pod at any time."""
    here, going = _where(".metadata.deletionTimestamp", "DoesNotExist"), _where(".metadata.deletionTimestamp", "Exists")
    gate, ready, probed = _condition(READINESS_GATE), _condition("Ready"), _condition("ContainersReady")
    return [
        _stage(
            "node-ready", "Node", [_where(ready, "NotIn", "True")], {"statusTemplate": _NODE % {"pods": PODS_PER_NODE}}
        ),
        _stage("pod-runs", "Pod", [here, _where(".status.podIP", "DoesNotExist")], {"statusTemplate": _RUNNING}),
        _stage(
            "pod-ready",
            "Pod",
            [here, _where(gate, "In", "True"), _where(probed, "In", "True"), _where(ready, "In", "False")],
            {"statusTemplate": _READY % ("True", "")},
        ),
        _stage(
            "pod-unready",
            "Pod",
            [here, _where(gate, "In", "False"), _where(ready, "In", "True")],
            {"statusTemplate": _READY % ("False", "ReadinessGatesNotReady")},
        ),
        _stage(
            "pod-fails",
            "Pod",
            [here, _where(gate, "In", "True"), _where(probed, "In", "False"), _where(ready, "In", "True")],
            {"statusTemplate": _READY % ("False", "ContainersNotReady")},
        ),
        _stage("pod-gone", "Pod", [going], {"finalizers": {"empty": True}, "delete": True}),
    ]


def nodes(num_pods: int, cidr: str) -> list[Document]:
    """Return nodes for so many pods, each with a part of the address range. Raises ValueError if it is too small."""
    wanted = max(1, -(-num_pods // PODS_PER_NODE))
    ranges = [str(part) for part, _ in zip(_parts(cidr), range(wanted), strict=False)]
    if len(ranges) < wanted:
        raise ValueError(
            f"cidr is {cidr}; it has room for {len(ranges)} nodes, {wanted} are needed for {num_pods} pods"
        )
    return [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"fake-{number}", "annotations": ANNOTATION},
            "spec": {"podCIDR": part, "podCIDRs": [part]},
        }
        for number, part in enumerate(ranges)
    ]


def _parts(cidr: str) -> Iterable[ipaddress.IPv4Network]:
    return ipaddress.IPv4Network(cidr).subnets(new_prefix=PREFIX)


def _condition(name: str) -> str:
    return f'.status.conditions.[] | select( .type == "{name}" ) | .status'


def _where(key: str, operator: str, *values: str) -> Document:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def _stage(name: str, kind: str, expressions: list[Document], following: Mapping[str, Any]) -> Document:
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {"matchExpressions": expressions},
            "next": dict(following),
        },
    }
