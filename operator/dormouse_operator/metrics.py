"""The operator's metrics. Owns a registry of its own, so that tests and several operators do not share one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client import Counter as CounterMetric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from dormouse_operator.decide.findings import Findings
from dormouse_operator.decide.situation import Situation
from dormouse_operator.deployment_metrics import DeploymentMetrics
from dormouse_operator.logs import log_step
from dormouse_operator.manifests import EventRecord
from dormouse_operator.model import Key, RecordedStatus, Rung
from dormouse_operator.pool_metrics import PoolMetrics

_FAST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SLOW_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600)


class Metrics:
    """Everything that /metrics shows."""

    def __init__(self) -> None:
        """Make the metrics, all at zero."""
        self._registry = CollectorRegistry()
        ProcessCollector(namespace="dormouse", registry=self._registry)
        self._deployments = DeploymentMetrics()
        self.pools = PoolMetrics(self._registry)
        kwargs: dict[str, Any] = {"registry": self._registry}
        self._steps = Histogram(
            "dormouse_reconcile_seconds", "Duration of the steps of a pass", ["step"], buckets=_FAST_S, **kwargs
        )
        self._errors = CounterMetric("dormouse_reconcile_errors", "Passes that did not succeed", ["kind"], **kwargs)
        self._actuation = Histogram(
            "dormouse_actuation_seconds", "Time until a deployment serves", ["path"], buckets=_SLOW_S, **kwargs
        )
        for path in ("cold", "level1", "level2", "level3"):  # from the start: a rate does not see a series' first value
            self._actuation.labels(path)
        self._sleep = Histogram(
            "dormouse_sleep_seconds", "Time that workers take to give memory back", buckets=_SLOW_S, **kwargs
        )
        self._calls = CounterMetric(
            "dormouse_kube_requests", "Calls to the API server", ["verb", "resource", "code"], **kwargs
        )
        self._epoch = Gauge("dormouse_operator_epoch", "Epoch of the lease, 0 while not leading", **kwargs)
        self._leads = Gauge("dormouse_operator_leader", "1 while this process holds the lease, else 0", **kwargs)
        self._depth = Gauge("dormouse_queue_depth", "Deployments that are due and not looked at yet", **kwargs)
        self._oldest = Gauge("dormouse_queue_oldest_seconds", "How long the first of them has been due", **kwargs)

    def render(self) -> bytes:
        """Return the text for Prometheus."""
        return generate_latest(self._registry) + self._deployments.render()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time one step of a pass, and name it in what is logged meanwhile."""
        begin = time.perf_counter()
        try:
            with log_step(name):
                yield
        finally:
            self._steps.labels(name).observe(time.perf_counter() - begin)

    def count_error(self, kind: str) -> None:
        """Count a pass that did not succeed."""
        self._errors.labels(kind).inc()

    def count_call(self, verb: str, resource: str, code: int) -> None:
        """Count a call to the API server. Safe from any thread."""
        self._calls.labels(verb, resource, str(code)).inc()

    def follow_lease(self, epoch: Callable[[], int], leads: Callable[[], bool]) -> None:
        """Show the epoch and who leads, as these say."""
        self._epoch.set_function(epoch)
        self._leads.set_function(leads)

    def follow_certificates(self, expiries_s: Mapping[str, Callable[[], float]]) -> None:
        """Show for how long the certificates of these holders last, as these say."""
        words = "For how long a certificate is still accepted; below 0 it is not; NaN while there is none"
        gauge = Gauge("dormouse_certificate_expiry_seconds", words, ["holder"], registry=self._registry)
        for holder, expiry_s in expiries_s.items():
            gauge.labels(holder).set_function(expiry_s)

    def follow_queue(self, waiting_s: Callable[[], list[float]]) -> None:
        """Show the queue, of which each has waited for so long."""
        self._depth.set_function(lambda: len(waiting_s()))
        self._oldest.set_function(lambda: max(waiting_s(), default=0.0))

    def follow_watches(self, ages_s: Callable[[], Mapping[str, float]]) -> None:
        """Show how long ago each watch was last heard."""
        self._registry.register(_WatchAges(ages_s))

    def show(self, situation: Situation, findings: Findings, status: Mapping[str, Any]) -> None:
        """Show the deployment as it is now."""
        self._deployments.show(situation, findings, status)

    def forget(self, key: Key) -> None:
        """Show nothing of a deployment that is gone."""
        self._deployments.forget(key)

    def count_actuation(self, before: RecordedStatus, status: Mapping[str, Any]) -> None:
        """Count what brought a deployment to serve, if it is new."""
        actuation = status.get("lastActuation")
        known = before.raw.get("lastActuation")
        if actuation and actuation != known:
            self._actuation.labels(actuation["path"]).observe(actuation["seconds"])

    def count_event(self, situation: Situation, event: EventRecord) -> None:
        """Count a sleep. Where pods go instead, which may be gone already, there is no time to tell."""
        times_s = [worker.last_sleep_s for worker in situation.workers.values()]
        if event.reason == "Slept" and situation.rung is not Rung.ZERO and times_s:
            self._sleep.observe(max(times_s))


class _WatchAges(Collector):
    """One gauge per kind that is watched."""

    def __init__(self, ages_s: Callable[[], Mapping[str, float]]) -> None:
        self._ages_s = ages_s

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """See Collector."""
        family = GaugeMetricFamily(
            "dormouse_watch_age_seconds", "Since the last event or bookmark of a watch", labels=["resource"]
        )
        for resource, age_s in self._ages_s().items():
            family.add_metric([resource], age_s)
        yield family
