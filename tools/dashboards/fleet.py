"""The dashboard of all deployments: is anybody in trouble, and who."""

from __future__ import annotations

from tools.dashboards.model import Dashboard, Panel
from tools.dashboards.promql import (
    FAILED,
    IN_NAMESPACE,
    MODELS_OF_NAMESPACE,
    NAMESPACE,
    quantiles,
    rate,
    total,
    with_label,
)

_REQUESTS = "dormouse_gateway_requests_total"
_FAILED_SHARE = (
    f"({rate(_REQUESTS, '', with_label(MODELS_OF_NAMESPACE, FAILED))} or vector(0))"
    f" / {rate(_REQUESTS, '', MODELS_OF_NAMESPACE)}"
)

FLEET = Dashboard(
    "dormouse-fleet",
    "Fleet",
    "All deployments at a glance.",
    [NAMESPACE],
    {
        "Now": (
            Panel(
                "Deployments",
                "short",
                {"all": total("dormouse_deployment_ready", "", IN_NAMESPACE, function="count")},
                "InferenceDeployments that the operator looks after.",
                "stat",
            ),
            Panel(
                "Deployments not ready",
                "short",
                {"not ready": f"sum(1 - dormouse_deployment_ready{IN_NAMESPACE})"},
                "Condition Ready is not True. A deployment that sleeps and can be woken is ready.",
                "stat",
            ),
            Panel(
                "Replicas that serve",
                "short",
                {"active": total("dormouse_replicas", "", with_label(IN_NAMESPACE, 'state="active"'))},
                "Replicas in the state Active.",
                "stat",
            ),
            Panel(
                "Requests held",
                "short",
                {"held": total("dormouse_held_requests", "", MODELS_OF_NAMESPACE)},
                "Requests that wait in the gateways for a worker to start, wake or have room.",
                "stat",
            ),
        ),
        "Requests": (
            Panel(
                "Requests per second by status",
                "reqps",
                {"{{code}}": rate(_REQUESTS, "code", MODELS_OF_NAMESPACE)},
                "Requests that ended, by the gRPC status that the client got.",
            ),
            Panel(
                "Share of failed requests",
                "percentunit",
                {"failed": _FAILED_SHARE},
                "Requests that failed through no fault of their client, as a share of all.",
            ),
            Panel(
                "Seconds per request",
                "s",
                quantiles("dormouse_gateway_request_seconds", "method", MODELS_OF_NAMESPACE),
                "From a request's arrival at the gateway to the end of its answer, waiting included.",
            ),
        ),
        "Who": (
            Panel(
                "Busiest models",
                "reqps",
                {"{{model}}": f"topk(10, {rate(_REQUESTS, 'model', MODELS_OF_NAMESPACE)})"},
                "The ten models with the most requests per second.",
            ),
            Panel(
                "Generated tokens per second",
                "short",
                {"{{model_name}}": f"topk(10, {rate('vllm:generation_tokens_total', 'model_name', IN_NAMESPACE)})"},
                "The ten models that generate most.",
            ),
            Panel(
                "Requests held by model",
                "short",
                {"{{model}}": f"topk(10, {total('dormouse_held_requests', 'model', MODELS_OF_NAMESPACE)})"},
                "The ten models for which most requests wait.",
            ),
        ),
        "Replicas and cache": (
            Panel(
                "Replicas by state",
                "short",
                {"{{state}}": total("dormouse_replicas", "state", IN_NAMESPACE)},
                "All replicas; a replica without a pod is pending.",
            ),
            Panel(
                "Fullest KV caches",
                "percentunit",
                {"{{pod}}": f"topk(10, vllm:kv_cache_usage_perc{IN_NAMESPACE})"},
                "The ten workers with the largest share of blocks in use.",
            ),
            Panel(
                "Host memory of sleeping models",
                "bytes",
                {"{{namespace}}": total("dormouse_host_copy_bytes", "namespace", IN_NAMESPACE)},
                "Copies of weights and KV cache in host memory, from which workers wake.",
            ),
        ),
    },
)
