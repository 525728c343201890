"""Istio's control plane on the cluster, by its own charts, and a gateway of stock Envoy that it configures.

Stock Envoy lacks the filters of Istio's own build, and its agent, which fetches certificates: what needs one or the
other (telemetry, mutual TLS between workloads) is switched off. What Istio makes of an InferencePool needs neither.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml

from localkube.extras import ISTIO
from tests.platforms.envoys import PORT, envoy_pod
from tests.platforms.guests import ensure_definitions, ensure_guest
from tools.bootstrap import ROOT
from tools.kubectl import Cluster

GATEWAY = "inference-gateway"
Manifest = dict[str, Any]
_SYSTEM = "istio-system"
_EXAMPLES = ROOT / "examples" / "envoy"
_INFERENCE_POOLS = "inference.networking.k8s.io_inferencepools.yaml"
_SETTINGS = {
    "env.ENABLE_GATEWAY_API_INFERENCE_EXTENSION": "true",
    "env.PILOT_ENABLE_ALPN_FILTER": "false",
    "env.PILOT_ENABLE_METADATA_EXCHANGE": "false",
    "telemetry.enabled": "false",
    "meshConfig.enableAutoMtls": "false",
    "global.imagePullPolicy": "Never",
    "global.defaultPodDisruptionBudget.enabled": "false",
    "autoscaleEnabled": "false",
    "resources.requests.cpu": "50m",
    "resources.requests.memory": "256Mi",
}


@contextmanager
def running_istio(cluster: Cluster) -> Iterator[None]:
    """Have the definitions of the Gateway API and its extension, and Istio, while the context lasts."""
    charts, images = ensure_guest(ISTIO)
    definitions = [
        str(ensure_definitions("sigs.k8s.io/gateway-api", "config/crd/standard")),
        str(ensure_definitions("sigs.k8s.io/gateway-api-inference-extension", "config/crd/bases") / _INFERENCE_POOLS),
    ]
    files = [part for file in definitions for part in ("-f", file)]
    settings = {"image": images["pilot-discovery"], **_SETTINGS}
    said = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    place = ["--namespace", _SYSTEM]
    discovery = str(charts / "istio-control" / "istio-discovery")
    try:
        cluster.kubectl("apply", "--server-side", *files)
        cluster.helm("upgrade", "--install", "istio-base", str(charts / "base"), *place, "--create-namespace", "--wait")
        cluster.helm("upgrade", "--install", "istiod", discovery, *place, *said, "--wait", "--timeout", "5m")
        yield
    finally:
        for release in ("istiod", "istio-base"):
            cluster.helm("uninstall", release, *place, "--ignore-not-found", "--wait")
        cluster.kubectl("delete", "--ignore-not-found", "-f", str(charts / "base" / "files" / "crd-all.gen.yaml"))
        cluster.kubectl("delete", "--ignore-not-found", *files)
        cluster.kubectl(
            "delete", "configmaps", "--all-namespaces", "-l", "istio.io/config=true"
        )  # one in each namespace
        cluster.kubectl("delete", "namespace", _SYSTEM, "--ignore-not-found", "--wait=false")


def gateway(namespace: str) -> Iterator[Manifest]:
    """Yield the example's Gateway, and an Envoy that asks Istio for all else: listeners, routes, clusters."""
    manifest = yaml.safe_load((_EXAMPLES / "gateway.yaml").read_text("utf-8"))
    host = f"{GATEWAY}.{namespace}.svc.cluster.local"
    assert manifest["metadata"]["name"] == GATEWAY
    manifest["spec"]["addresses"] = [{"type": "Hostname", "value": host}]  # Istio makes no pods for it: here they are
    yield manifest
    [listener] = manifest["spec"]["listeners"]
    labels = {"gateway.networking.k8s.io/gateway-name": GATEWAY}
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": GATEWAY},
        "spec": {"selector": labels, "ports": [{"name": "http", "port": listener["port"], "targetPort": PORT}]},
    }
    node = f"router~$(IP)~{GATEWAY}.{namespace}~{namespace}.svc.cluster.local"
    flags = ("--service-cluster", GATEWAY, "--service-node", node)
    yield from envoy_pod(GATEWAY, json.dumps(_bootstrap(namespace, labels)), flags=flags, labels=labels)  # JSON is YAML


def route(namespace: str, pool: str) -> Manifest:
    """Return the example's route, from the gateway in this namespace to this pool."""
    manifest: Manifest = yaml.safe_load((_EXAMPLES / "httproute.yaml").read_text("utf-8"))
    spec = manifest["spec"]
    spec["parentRefs"][0]["namespace"] = namespace
    manifest["metadata"]["name"] = spec["rules"][0]["backendRefs"][0]["name"] = pool
    return manifest


def _bootstrap(namespace: str, labels: dict[str, str]) -> Manifest:
    """Return how Envoy finds Istio, and nothing else."""
    ads = {"ads": {}, "resource_api_version": "V3"}
    grpc = {"envoy_grpc": {"cluster_name": "xds-grpc"}}
    options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    address = {"socket_address": {"address": f"istiod.{_SYSTEM}.svc", "port_value": 15010}}
    xds = {
        "name": "xds-grpc",
        "type": "STRICT_DNS",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {
            options: {
                "@type": f"type.googleapis.com/{options}",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
        "load_assignment": {
            "cluster_name": "xds-grpc",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }
    return {
        "node": {"metadata": {"NAMESPACE": namespace, "CLUSTER_ID": "Kubernetes", "LABELS": labels}},
        "dynamic_resources": {
            "ads_config": {"api_type": "GRPC", "transport_api_version": "V3", "grpc_services": [grpc]},
            "cds_config": ads,
            "lds_config": ads,
        },
        "static_resources": {"clusters": [xds]},
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 15000}}},
    }
