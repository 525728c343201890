"""Where a worker tells routers of others what is cached: its flag, a variable, and who may connect. Pure."""

from __future__ import annotations

import json

from dormouse_api.names import KV_EVENTS_PORT, KV_REPLAY_PORT, POD_IP_VARIABLE
from dormouse_operator.manifests.common import Manifest
from dormouse_operator.model import Deployment, Serving, Subscriber


def events_config(deployment: Deployment) -> str | None:
    """Return the value of the worker's flag; None = nobody is told."""
    if not deployment.serving.kv_subscribers:
        return None
    return json.dumps(
        {
            "enable_kv_cache_events": True,
            "endpoint": f"tcp://*:{KV_EVENTS_PORT}",
            "replay_endpoint": f"tcp://*:{KV_REPLAY_PORT}",
            # the worker puts its address in: arguments of all pods are the same
            "topic": f"kv@{{{POD_IP_VARIABLE}}}@{deployment.model.served_name}",
        }
    )


def events_environment(serving: Serving) -> list[Manifest]:
    """Return the variable with the pod's address."""
    address = {"name": POD_IP_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return [address] if serving.kv_subscribers else []


def events_ingress(serving: Serving) -> list[Manifest]:
    """Return the rule that lets subscribers connect."""
    if not serving.kv_subscribers:
        return []
    ports = [{"protocol": "TCP", "port": port} for port in (KV_EVENTS_PORT, KV_REPLAY_PORT)]
    return [{"from": [_peer(each) for each in serving.kv_subscribers], "ports": ports}]


def _peer(subscriber: Subscriber) -> Manifest:
    peer: dict[str, Manifest] = {}
    if subscriber.pod_labels or subscriber.namespace_labels is None:
        peer["podSelector"] = {"matchLabels": dict(subscriber.pod_labels)} if subscriber.pod_labels else {}
    if subscriber.namespace_labels is not None:
        peer["namespaceSelector"] = {"matchLabels": dict(subscriber.namespace_labels)}
    return peer
