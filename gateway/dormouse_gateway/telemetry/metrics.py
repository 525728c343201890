"""The gateway's metrics. Owns the registry; every label has few values, whatever clients send."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import grpc
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dormouse_api.status import CallError
from dormouse_api.v1.inference_pb2 import Usage
from dormouse_gateway.migrate.migrator import Outcome
from dormouse_gateway.model import Deployment
from dormouse_gateway.router import Router
from dormouse_gateway.routing.breaker import State
from dormouse_gateway.routing.policy import Affinity
from dormouse_kube.reflector import ObjectKey

MAX_USERS = 1000  # names of keys; series of more would fill the memory
OTHER_USERS = "other"
UNKNOWN_MODEL = "unknown"  # the label of requests for models that do not exist, and of unreadable ones
_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_REASONS = {
    grpc.StatusCode.INVALID_ARGUMENT: "invalid_argument",
    grpc.StatusCode.UNAUTHENTICATED: "unauthenticated",
    grpc.StatusCode.NOT_FOUND: "unknown_model",
    grpc.StatusCode.UNAVAILABLE: "none_ready",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "full",
    grpc.StatusCode.DEADLINE_EXCEEDED: "deadline",
}
_BREAKER_VALUES = {State.CLOSED: 0, State.HALF_OPEN: 1, State.OPEN: 2}


class Metrics:
    """Counts requests. What can be counted from the router is read from it when somebody asks (`watch`)."""

    def __init__(self, *, max_users: int = MAX_USERS) -> None:
        """Start at zero; keys beyond so many count as one."""
        self._max_users = max_users
        self._registry = CollectorRegistry()
        ProcessCollector(namespace="dormouse", registry=self._registry)
        self._requests = Counter(
            "dormouse_gateway_requests",
            "Requests that ended, by the gRPC status that the client got.",
            ["model", "code", "method"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "dormouse_gateway_request_seconds",
            "From the request's arrival to the end of its answer.",
            ["model", "method"],
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        self._rejected = Counter(
            "dormouse_rejected",
            "Requests that the gateway refused by itself, without asking a worker.",
            ["reason"],
            registry=self._registry,
        )
        self._http = Counter(
            "dormouse_gateway_http_responses",
            "Responses of the OpenAI-compatible API, refusals before any worker was asked included.",
            ["path", "status"],
            registry=self._registry,
        )
        self._held = Histogram(
            "dormouse_hold_seconds",
            "How long requests waited in the gateway for a worker, those that needed not wait left out.",
            ["model"],
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        self._migrated = Counter(
            "dormouse_migrated",
            "Streams that lost their worker after they had begun, by how that went: done = ended elsewhere, "
            "handed_over = the same as planned, as their first worker was to compute the prompt alone.",
            ["outcome"],
            registry=self._registry,
        )
        for outcome in Outcome:  # from the start: a rate does not see a series' first value
            self._migrated.labels(outcome)
        self._aborted = Counter(
            "dormouse_gateway_canaries_aborted",
            "Canaries that this gateway gives no more requests, as they failed or were slow beside what stands.",
            ["model"],
            registry=self._registry,
        )
        self._users: set[str] = set()
        self._used = Counter(
            "dormouse_usage_requests",
            "Requests that a model answered or began to, by the API key that sent them.",
            ["key", "namespace", "model"],
            registry=self._registry,
        )
        self._used_tokens = Counter(
            "dormouse_usage_tokens",
            "Tokens of those requests: of prompts, cached ones among them, and of answers.",
            ["key", "namespace", "model", "part"],
            registry=self._registry,
        )
        self._affinity = Counter(
            "dormouse_gateway_prefix_affinity",
            "Requests with a prefix or an adapter: hit = given to who keeps it, spilled = that worker was too full.",
            ["model", "outcome"],
            registry=self._registry,
        )

    def aborted(self, canary: Deployment) -> None:
        """Count a canary that gets no more requests."""
        self._aborted.labels(canary.full_name).inc()

    def used(self, key: str, deployment: ObjectKey, usage: Usage) -> None:
        """Count what a request took, by the name of its key, "" for none."""
        whose = self._user(key), deployment.namespace, f"{deployment.namespace}/{deployment.name}"
        self._used.labels(*whose).inc()
        parts = (
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("completion", usage.completion_tokens),
        )
        for part, tokens in parts:
            self._used_tokens.labels(*whose, part).inc(tokens)

    def _user(self, key: str) -> str:
        """Return the key's name, or one for all beyond the first thousand."""
        if len(self._users) < self._max_users:
            self._users.add(key)
        return key if key in self._users else OTHER_USERS

    def watch(self, router: Router) -> None:
        """Show this router's endpoints and running requests, too."""
        self._registry.register(_RouterCollector(router))

    def follow_certificate(self, expiry_s: Callable[[], float]) -> None:
        """Show for how long the gateway's certificate lasts, as this says."""
        words = "For how long the gateway's own certificate is still accepted by workers; below 0 it is not."
        Gauge("dormouse_certificate_expiry_seconds", words, registry=self._registry).set_function(expiry_s)

    def finished(self, model: str, method: str, code: grpc.StatusCode, seconds: float) -> None:
        """Count a request that ended."""
        self._requests.labels(model, code.name, method).inc()
        self._seconds.labels(model, method).observe(seconds)

    def responded(self, path: str, status: int) -> None:
        """Count a response of the HTTP API; the path is one of its own, or "other"."""
        self._http.labels(path, str(status)).inc()

    def rejected(self, error: CallError) -> None:
        """Count a request that never reached a worker."""
        reason = error.reason or _REASONS.get(error.code, error.code.name.lower())
        self._rejected.labels(reason).inc()

    def held(self, model: str, seconds: float) -> None:
        """Count a request that waited for a worker, until it got one or was refused or went."""
        self._held.labels(model).observe(seconds)

    def migrated(self, outcome: str) -> None:
        """Count a stream that had to move; see `migrate.Outcome`."""
        self._migrated.labels(outcome).inc()

    def chosen(self, deployment: ObjectKey, affinity: Affinity) -> None:
        """Count that a request with a prefix was given to a worker."""
        self._affinity.labels(f"{deployment.namespace}/{deployment.name}", affinity).inc()

    def forget(self, deployment: Deployment) -> None:
        """Drop what was counted for a deployment that is gone, so that names do not pile up."""
        for family in (self._requests, self._seconds, self._held, self._affinity, self._used, self._used_tokens):
            family.remove_by_labels({"model": deployment.full_name})

    def value(self, name: str, **labels: str) -> float | None:
        """Return one sample's value, None if there is none."""
        return self._registry.get_sample_value(name, labels)

    def text(self) -> bytes:
        """Return everything in the Prometheus text format."""
        return generate_latest(self._registry)


class _RouterCollector(Collector):
    """Reads the router when metrics are asked for, so that the figures cannot drift from it."""

    def __init__(self, router: Router) -> None:
        """Take the router; it is only read."""
        self._router = router

    def collect(self) -> Iterator[Metric]:
        """Yield running requests and endpoints of every known deployment, and every endpoint's breaker."""
        in_flight = GaugeMetricFamily(
            "dormouse_gateway_in_flight", "Requests that a worker is answering now.", labels=["model"]
        )
        endpoints = GaugeMetricFamily(
            "dormouse_gateway_endpoints",
            "Worker pods: ready takes requests, running only answers about the model, retired finishes what it has.",
            labels=["model", "state"],
        )
        held = GaugeMetricFamily(
            "dormouse_held_requests", "Requests that wait in the gateway for a worker.", labels=["model"]
        )
        breakers = GaugeMetricFamily(
            "dormouse_gateway_breaker",
            "The circuit breaker of each worker pod that there is: 0 closed, 1 half open (lets one in), 2 open.",
            labels=["model", "pod"],
        )
        running, states = self._router.pool.in_flight(), self._router.pool.states()
        for deployment in self._router.catalogue.deployments():
            in_flight.add_metric([deployment.full_name], running[deployment.key])
            for state in ("ready", "running", "retired"):
                endpoints.add_metric([deployment.full_name, state], states[deployment.key, state])
            activity = self._router.activity.activity(deployment.key)
            held.add_metric([deployment.full_name], activity.held if activity else 0)
            for endpoint, breaker in self._router.pool.breakers(deployment.key):
                breakers.add_metric([deployment.full_name, endpoint.pod.name], _BREAKER_VALUES[breaker])
        yield in_flight
        yield held
        yield endpoints
        yield breakers
