"""Names that two parts must spell alike: ports, labels, metadata keys, roles, the custom resource's coordinates."""

from __future__ import annotations

from enum import StrEnum

GROUP = "inference.dormouse.dev"
VERSION = "v1alpha1"
KIND = "InferenceDeployment"
PLURAL = "inferencedeployments"
API_VERSION = f"{GROUP}/{VERSION}"

INFERENCE_PORT = 50051  # workers and gateway: dormouse.v1.Inference, health, reflection
CONTROL_PORT = 50052  # workers: WorkerControl; gateway: GatewayControl
HTTP_PORT = 8000  # gateway: the OpenAI-compatible API
METRICS_PORT = 8080  # every part: /metrics, /healthz, /readyz over HTTP

INFERENCE_SERVICE = "dormouse.v1.Inference"
CONTROL_SERVICE = "dormouse.v1.WorkerControl"

LABEL_DEPLOYMENT = f"{GROUP}/deployment"  # on every child: the name of its InferenceDeployment
LABEL_REPLICA = f"{GROUP}/replica"  # on worker pods: "0", "1", …
LABEL_REVISION = f"{GROUP}/revision"  # on worker pods: digest of the pod-relevant part of the spec
LABEL_POD_DIGEST = f"{GROUP}/pod-digest"  # on worker pods: digest of what only another pod can change
LABEL_COMPONENT = "app.kubernetes.io/component"
COMPONENT_WORKER = "worker"

READINESS_GATE = "dormouse.dev/cache-allocated"  # pod condition, True while the agreed cache is allocated and open

METADATA_ROLE_TOKEN = "dormouse-role-token"  # gRPC metadata: proves the caller's role; absent = client  # noqa: S105
METADATA_CACHE_SALT = "dormouse-cache-salt"  # gRPC metadata, the gateway's only: who shares cached prefixes


class Role(StrEnum):
    """Who calls. A caller that proves nothing is a client."""

    CLIENT = "client"
    GATEWAY = "gateway"
    OPERATOR = "operator"
