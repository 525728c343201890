"""What /metrics shows of each pool."""

from __future__ import annotations

from collections import Counter

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client import Counter as CounterMetric

from dormouse_operator.decide.pools.events import new_refusals, num_switches
from dormouse_operator.decide.pools.plan import PoolPlan
from dormouse_operator.decide.pools.rising import REASONS
from dormouse_operator.model import PoolKey
from dormouse_operator.model.pool_observed import PoolObserved
from dormouse_operator.model.pools import SlotPhase

_POOL = ["namespace", "pool"]


class PoolMetrics:
    """Slots, waits and switches of every pool."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Make the metrics in a registry."""
        self._slots = Gauge("dormouse_pool_slots", "Slots of a pool by phase", [*_POOL, "phase"], registry=registry)
        self._waiting = Gauge(
            "dormouse_pool_waiting_members", "Members that want more replicas awake", _POOL, registry=registry
        )
        self._longest = Gauge(
            "dormouse_pool_longest_wait_seconds", "How long the first of them waits", _POOL, registry=registry
        )
        self._starving = Gauge(
            "dormouse_pool_starving_members",
            "Members with nothing awake that have waited longer than any should",
            _POOL,
            registry=registry,
        )
        self._switches = CounterMetric(
            "dormouse_pool_switches", "Times that another replica came to serve on a slot", _POOL, registry=registry
        )
        self._refused = CounterMetric(
            "dormouse_pool_refused_grants",
            "Grants after which a replica did not come to serve",
            [*_POOL, "reason"],
            registry=registry,
        )
        self._known: set[PoolKey] = set()

    def show(self, key: PoolKey, observed: PoolObserved, plan: PoolPlan) -> None:
        """Show a pool as it stands now."""
        place = (key.namespace, key.name)
        phases = Counter(slot.phase for slot in plan.slots)
        for phase in SlotPhase:
            self._slots.labels(*place, phase.value).set(phases[phase])
        waits_s = [(observed.now - since).total_seconds() for since, _ in plan.waiting.values()]
        self._waiting.labels(*place).set(len(waits_s))
        self._longest.labels(*place).set(max(waits_s, default=0.0))
        self._starving.labels(*place).set(len(plan.decision.starving))
        if key not in self._known:  # from the start: a rate does not see a series' first value
            self._known.add(key)
            self._switches.labels(*place)
            for reason in REASONS:
                self._refused.labels(*place, reason)

    def count(self, key: PoolKey, observed: PoolObserved, plan: PoolPlan) -> None:
        """Count what happened since the recorded status; once it was written."""
        self._switches.labels(key.namespace, key.name).inc(num_switches(observed, plan))
        for refusal in new_refusals(observed, plan):
            self._refused.labels(key.namespace, key.name, refusal.reason).inc()

    def forget(self, key: PoolKey) -> None:
        """Show nothing of a pool that is gone."""
        if key not in self._known:
            return
        self._known.discard(key)
        place = (key.namespace, key.name)
        for phase in SlotPhase:
            self._slots.remove(*place, phase.value)
        for metric in (self._waiting, self._longest, self._starving, self._switches):
            metric.remove(*place)
        for reason in REASONS:
            self._refused.remove(*place, reason)
