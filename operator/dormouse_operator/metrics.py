"""The operator's metrics. Owns a registry of its own, so that tests and several operators do not share one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client import Counter as CounterMetric

from dormouse_operator.manifests import Occurrence
from dormouse_operator.model import Key, Observed, RecordedStatus
from dormouse_operator.phases import REPLICA_PHASES, Phase, replica_phase

_FAST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SLOW_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600)


class Metrics:
    """Everything that /metrics shows."""

    def __init__(self) -> None:
        """Make the metrics, all at zero."""
        self._registry = CollectorRegistry()
        labels = ["namespace", "deployment"]
        kwargs: dict[str, Any] = {"registry": self._registry}
        self._steps = Histogram(
            "dormouse_reconcile_seconds", "Duration of the steps of a pass", ["step"], buckets=_FAST_S, **kwargs
        )
        self._errors = CounterMetric("dormouse_reconcile_errors", "Passes that did not succeed", ["kind"], **kwargs)
        self._replicas = Gauge("dormouse_replicas", "Replicas by state", [*labels, "state"], **kwargs)
        self._agreed = Gauge("dormouse_kv_blocks_agreed", "KV-cache blocks that each replica holds", labels, **kwargs)
        self._blocks = Gauge("dormouse_kv_blocks", "Blocks that a rank reported", [*labels, "pod", "rank"], **kwargs)
        self._residual = Gauge(
            "dormouse_gpu_residual_bytes", "Memory that a rank still holds asleep", [*labels, "pod", "rank"], **kwargs
        )
        self._actuation = Histogram(
            "dormouse_actuation_seconds", "Time until a deployment serves", ["path"], buckets=_SLOW_S, **kwargs
        )
        self._sleep = Histogram(
            "dormouse_sleep_seconds", "Time that workers take to give memory back", buckets=_SLOW_S, **kwargs
        )
        self._calls = CounterMetric(
            "dormouse_kube_requests", "Calls to the API server", ["verb", "resource", "code"], **kwargs
        )
        self._epoch = Gauge("dormouse_operator_epoch", "Epoch of the lease, 0 while not leading", **kwargs)
        self._shown: dict[Key, list[tuple[Gauge, tuple[str, ...]]]] = {}

    def render(self) -> bytes:
        """Return the text for Prometheus."""
        return generate_latest(self._registry)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time one step of a pass."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._steps.labels(name).observe(time.perf_counter() - begin)

    def count_error(self, kind: str) -> None:
        """Count a pass that did not succeed."""
        self._errors.labels(kind).inc()

    def count_call(self, verb: str, resource: str, code: int) -> None:
        """Count a call to the API server."""
        self._calls.labels(verb, resource, str(code)).inc()

    def follow_epoch(self, read: Callable[[], int]) -> None:
        """Show what `read` returns."""
        self._epoch.set_function(read)

    def show(self, observed: Observed, status: Mapping[str, Any]) -> None:
        """Show the deployment as it is now; what it showed before and does not now, disappears."""
        key = observed.deployment.key
        values = dict(self._values(observed, status))
        for gauge, labels in self._shown.get(key, []):
            if (gauge, labels) not in values:
                gauge.remove(*labels)
        for (gauge, labels), value in values.items():
            gauge.labels(*labels).set(value)
        self._shown[key] = list(values)

    def forget(self, key: Key) -> None:
        """Show nothing of a deployment that is gone."""
        for gauge, labels in self._shown.pop(key, []):
            gauge.remove(*labels)

    def count_actuation(self, before: RecordedStatus, status: Mapping[str, Any]) -> None:
        """Count what brought a deployment to serve, if it is new."""
        actuation = status.get("lastActuation")
        known = before.raw.get("lastActuation")
        if actuation and actuation != known:
            self._actuation.labels(actuation["path"]).observe(actuation["seconds"])

    def count_occurrence(self, observed: Observed, occurrence: Occurrence) -> None:
        """Count a sleep."""
        if occurrence.reason == "Slept":
            self._sleep.observe(max(worker.last_sleep_s for worker in observed.workers.values()))

    def _values(
        self, observed: Observed, status: Mapping[str, Any]
    ) -> Iterator[tuple[tuple[Gauge, tuple[str, ...]], float]]:
        """Yield each gauge with its labels and value."""
        key = tuple(observed.deployment.key)
        for state, count in _count_states(observed).items():
            yield (self._replicas, (*key, state)), count
        cache = status.get("kvCache", {})
        if "numGpuBlocks" in cache:
            yield (self._agreed, key), cache["numGpuBlocks"]
        for rank in cache.get("ranks", ()):
            labels = (*key, rank["pod"], str(rank["rank"]))
            yield (self._blocks, labels), rank["numGpuBlocks"]
            yield (self._residual, labels), rank.get("residualBytes", 0)


def _count_states(observed: Observed) -> Counter[str]:
    """Return how many replicas are in each phase; those without a pod are pending. Phases without replicas show 0."""
    phases = [replica_phase(observed, pod) for pod in observed.replicas]
    pending = [Phase.PENDING] * (observed.deployment.replicas - len(phases))
    counts = Counter({phase.lower(): 0 for phase in REPLICA_PHASES})
    counts.update(phase.lower() for phase in [*phases, *pending])
    return counts
