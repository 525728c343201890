"""The InferencePool of a deployment, and the HTTP API of its pods that goes with it. Pure.

A pool names its picker by a Service of its own namespace. Where the gateways are in another one, a headless Service of
the deployment's leads there, whose one endpoint is the cluster IP of the gateways' Service: gateways find it by DNS and
by EndpointSlices alike, and it stays the same while pods come and go. kube-proxy, which could not follow it, leaves
headless Services alone. The pool's workers serve HTTP from a container beside them, which holds no secret of ours: it
lets in what a picker has let in, by the same public key.
"""

from __future__ import annotations

from dormouse_api.names import COMPONENT_WORKER, HTTP_PORT, LABEL_COMPONENT
from dormouse_operator.manifests.common import (
    FIELD_MANAGER,
    LABEL_INSTANCE,
    Manifest,
    is_owned,
    labels_of,
    metadata_of,
    selector_labels,
)
from dormouse_operator.model import ChildState, Deployment, Picker, PoolSeen

LABEL_SLICE_SERVICE = "kubernetes.io/service-name"
LABEL_SLICE_MANAGER = "endpointslice.kubernetes.io/managed-by"
HTTP_CONTAINER = "http"
HTTP_PORT_NAME = "http"
LOCAL_SOCKET = "/tmp/inference.sock"  # noqa: S108  # in an emptyDir of the pod's own: by it the HTTP API calls its worker
_PICKER_PORT_NAME = "grpc-picker"
_PICKER_PROTOCOL = "http2"  # with TLS, too: of "https" Istio makes HTTP/1, which carries no gRPC
_LEAST = {"cpu": "50m", "memory": "96Mi"}


def http_container(deployment: Deployment, gateway_key: str) -> Manifest:
    """Return what is its own of the container, which starts before the worker and ends after it."""
    source, serving = deployment.model, deployment.serving
    names = dict.fromkeys([source.served_name, str(deployment.key)])
    probe = {"tcpSocket": {"port": HTTP_PORT}, "periodSeconds": 5, "timeoutSeconds": 2, "failureThreshold": 6}
    return {
        "name": HTTP_CONTAINER,
        "restartPolicy": "Always",  # of an init container: it stays
        "command": ["python", "-m", "dormouse_gateway.beside"],
        "args": [
            f"--worker={LOCAL_SOCKET}",
            *(["--fail-open"] if serving.failure_mode == "FailOpen" else []),
            "--",
            *names,
        ],
        "env": [
            {"name": "DORMOUSE_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
            {"name": "DORMOUSE_GATEWAY_KEY", "value": gateway_key},
        ],
        "ports": [{"name": HTTP_PORT_NAME, "containerPort": HTTP_PORT}],
        "resources": {"requests": dict(_LEAST), "limits": {"memory": "512Mi"}},
        "livenessProbe": probe,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108  # an emptyDir of the pod's own
    }


def http_service_port() -> Manifest:
    """Return the port by which gateways learn where a worker serves HTTP."""
    return {
        "name": HTTP_PORT_NAME,
        "port": HTTP_PORT,
        "targetPort": HTTP_PORT_NAME,
        "protocol": "TCP",
        "appProtocol": "http",
    }


def http_ingress() -> Manifest:
    """Return who may connect to the HTTP API: all, as nobody knows where their gateways are."""
    return {"ports": [{"port": HTTP_PORT, "protocol": "TCP"}]}


def shared_pool(deployment: Deployment) -> str:
    """Return the deployment in whose pool a canary's pods are, too: gateways send to members only. "" = in no other."""
    return deployment.canary.of if deployment.canary and deployment.serving.inference_pool else ""


def pool_manifest(deployment: Deployment, picker: Picker) -> Manifest:
    """Return the InferencePool."""
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": metadata_of(deployment, deployment.key.name, labels_of(deployment)),
        "spec": _pool_spec(deployment, picker),
    }


def picker_service_manifest(deployment: Deployment, picker: Picker) -> Manifest | None:
    """Return the Service that leads to the picker, None where the picker's own is in the same namespace."""
    if is_near(deployment, picker):
        return None
    port = {"name": _PICKER_PORT_NAME, "port": picker.port, "protocol": "TCP", "appProtocol": _PICKER_PROTOCOL}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata_of(deployment, picker_service_name(deployment), labels_of(deployment)),
        "spec": {"type": "ClusterIP", "clusterIP": "None", "ports": [port]},
    }


def picker_slice_manifest(deployment: Deployment, picker: Picker, address: str) -> Manifest:
    """Return the endpoint of that Service: the address of the gateways' Service."""
    name, managed_by = picker_service_name(deployment), {LABEL_SLICE_MANAGER: FIELD_MANAGER}
    labels = {**labels_of(deployment), LABEL_SLICE_SERVICE: name, **managed_by}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": metadata_of(deployment, name, labels),
        "addressType": "IPv6" if ":" in address else "IPv4",
        **_ends(picker, address),
    }


def picker_service_name(deployment: Deployment) -> str:
    """Return the name of that Service, and of its EndpointSlice."""
    return f"{deployment.key.name}-picker"


def parse_inference_pool(seen: PoolSeen | None, deployment: Deployment, picker: Picker | None) -> ChildState | None:
    """Compare what there is with what we would apply; None where there is nothing."""
    if seen is None or seen.pool is None:
        return None
    metadata = seen.pool["metadata"]
    return ChildState(
        uid=metadata["uid"],
        is_ours=is_owned(metadata, deployment),
        is_current=picker is not None
        and deployment.serving.inference_pool
        and seen.pool.get("spec") == _pool_spec(deployment, picker)
        and labels_of(deployment).items() <= (metadata.get("labels") or {}).items()
        and (seen.address is None or _leads_there(seen, seen.address, picker)),
    )


def is_near(deployment: Deployment, picker: Picker) -> bool:
    """Return whether the pool can name the gateways' own Service."""
    return deployment.key.namespace == picker.namespace


def _leads_there(seen: PoolSeen, address: str, picker: Picker) -> bool:
    is_headless = seen.service is not None and seen.service["spec"].get("clusterIP") == "None"
    wanted = _ends(picker, address)
    return is_headless and seen.ends is not None and {key: seen.ends.get(key) for key in wanted} == wanted


def _ends(picker: Picker, address: str) -> Manifest:
    """Return where the Service leads as the API server stores it."""
    port = {"name": _PICKER_PORT_NAME, "port": picker.port, "protocol": "TCP", "appProtocol": _PICKER_PROTOCOL}
    return {"endpoints": [{"addresses": [address], "conditions": {"ready": True}}], "ports": [port]}


def _pool_spec(deployment: Deployment, picker: Picker) -> Manifest:
    """Return the spec as the API server stores it."""
    return {
        "selector": {"matchLabels": _members(deployment)},
        "targetPorts": [{"number": HTTP_PORT}],
        "endpointPickerRef": {
            "group": "",
            "kind": "Service",
            "name": picker.service if is_near(deployment, picker) else picker_service_name(deployment),
            "port": {"number": picker.port},
            "failureMode": deployment.serving.failure_mode,
        },
    }


def _members(deployment: Deployment) -> dict[str, str]:
    """Return the labels of a pool's pods: its own, and of a deployment that is no canary those of its canaries."""
    if deployment.canary:
        return selector_labels(deployment.key.name)
    return {LABEL_INSTANCE: deployment.key.name, LABEL_COMPONENT: COMPONENT_WORKER}
