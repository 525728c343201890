"""The alerts as data, and their form as a Prometheus rule file. Each has a page in docs/runbooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tools.dashboards.promql import FAILED

# What the chart replaces by the value alerts.runbookUrl.
RUNBOOKS = "RUNBOOKS"

# Error budget: 99.9 % of requests may not fail through our fault. The factors and windows are those of the Site
# Reliability Workbook, chapter 5: 2 % of a month's budget in an hour, 5 % in six hours.
BUDGET = 0.001
FAST_BURN, SLOW_BURN = 14.4, 6.0
WINDOWS = ("5m", "30m", "1h", "6h")
# Certificates are renewed with a third of their time left (dormouse_operator.decide.renewal). How long they live is a
# setting, so the alert takes the longest time left within a day for it. An authority lives for years:
# a week to replace it.
LAST_SHARE = 0.25
# A busy replica's turn is at least nine times as long as the switch (decision 50): a pool that only takes turns spends
# a tenth of its slots' time on switches.
SWITCHING_SHARE = 0.3
AUTHORITY_S = 7 * 86400


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. `hold` is how long the expression must hold before it fires."""

    name: str
    expr: str
    hold: str
    severity: Literal["warning", "critical"]
    summary: str
    description: str
    runbook: str


ALERTS = (
    Alert(
        "DormouseNotReady",
        "max by (namespace, deployment) (dormouse_deployment_ready) == 0",
        "15m",
        "warning",
        "{{ $labels.namespace }}/{{ $labels.deployment }} is not ready",
        "Its condition Ready has not been True for 15 minutes. One that sleeps and can be woken is ready.",
        "not-ready",
    ),
    Alert(
        "DormouseWakeSlow",
        "histogram_quantile(0.9, sum by (le, path)"
        ' (rate(dormouse_actuation_seconds_bucket{path=~"level1|level2"}[30m]))) > 30',
        "0m",
        "warning",
        "Deployments wake slowly from {{ $labels.path }}",
        "One wake in ten took longer than {{ $value | humanizeDuration }} in the last 30 minutes.",
        "wake-slow",
    ),
    Alert(
        "DormouseHeldTooLong",
        "histogram_quantile(0.9, sum by (le, model) (rate(dormouse_hold_seconds_bucket[10m]))) > 60",
        "0m",
        "warning",
        "Requests for {{ $labels.model }} wait long for a worker",
        "One held request in ten waited longer than {{ $value | humanizeDuration }} in the last 10 minutes.",
        "held-too-long",
    ),
    Alert(
        "DormouseQueueSaturated",
        "sum by (namespace, model_name) (vllm:num_requests_waiting)"
        " > sum by (namespace, model_name) (vllm:num_requests_running)"
        ' or sum by (namespace) (rate(dormouse_rejected_total{reason="full"}[5m])) > 0',
        "10m",
        "warning",
        "More requests come than workers in {{ $labels.namespace }} can take",
        "For 10 minutes more requests waited at workers than ran, or gateways refused some because queues are full.",
        "queue-saturated",
    ),
    Alert(
        "DormouseKVNearlyFull",
        "avg_over_time(vllm:kv_cache_usage_perc[10m]) > 0.9",
        "5m",
        "warning",
        "The KV cache of {{ $labels.pod }} is nearly full",
        "{{ $value | humanizePercentage }} of its blocks were in use over the last 10 minutes.",
        "kv-nearly-full",
    ),
    Alert(
        "DormouseEngineStalled",
        "dormouse_engine_silence_seconds > 20 and on (namespace, pod) vllm:num_requests_running > 0",
        "0m",
        "critical",
        "The engine of {{ $labels.pod }} is stuck in the middle of requests",
        "It has said nothing for {{ $value | humanizeDuration }}; a healthy one is heard of with every step.",
        "engine-stalled",
    ),
    Alert(
        "DormouseCrashLoop",
        "increase(dormouse_engine_restarts_total[15m]) > 2 or changes(dormouse_process_start_time_seconds[15m]) > 2",
        "0m",
        "critical",
        "{{ $labels.pod }} ends and starts over and over",
        "Its process or its engine was started again more than twice in 15 minutes.",
        "crash-loop",
    ),
    Alert(
        "DormouseBlockMismatch",
        "(max by (namespace, pod) (dormouse_kv_blocks_allocated) > 0)"
        " * on (namespace, pod) group_left (deployment)"
        ' max by (namespace, pod, deployment) (dormouse_kv_blocks{deployment!=""} ^ 0)'
        " != on (namespace, deployment) group_left () max by (namespace, deployment) (dormouse_kv_blocks_agreed)",
        "10m",
        "critical",
        "{{ $labels.pod }} holds another number of blocks than was agreed",
        "It has allocated {{ $value }} blocks for 10 minutes, and status.kvCache.numGpuBlocks says another number.",
        "block-mismatch",
    ),
    Alert(
        "DormouseLeaderMissing",
        "sum by (namespace) (dormouse_operator_leader) < 1 or absent(dormouse_operator_leader)",
        "2m",
        "critical",
        "No operator leads",
        "For 2 minutes no operator has held the lease, or none was scraped: nothing is started, woken or put to sleep.",
        "leader-missing",
    ),
    Alert(
        "DormouseWatchStale",
        "dormouse_watch_age_seconds > 180",
        "1m",
        "warning",
        "The operator {{ $labels.pod }} has not heard of {{ $labels.resource }} for long",
        "The API server sends something about once a minute; this watch has been silent for"
        " {{ $value | humanizeDuration }}.",
        "watch-stale",
    ),
    Alert(
        "DormouseCertificateExpiring",
        f"dormouse_certificate_expiry_seconds < {LAST_SHARE} * max_over_time(dormouse_certificate_expiry_seconds[1d])"
        f' or dormouse_certificate_expiry_seconds{{holder="authority"}} < {AUTHORITY_S}',
        "5m",
        "critical",
        "A certificate of {{ $labels.pod }} expires and is not renewed",
        "It is accepted for {{ $value | humanizeDuration }} more; the operator renews with a third of the time left.",
        "certificate-expiring",
    ),
    Alert(
        "DormousePoolStarving",
        "max by (namespace, pool) (dormouse_pool_starving_members) > 0",
        "5m",
        "warning",
        "Models of the pool {{ $labels.namespace }}/{{ $labels.pool }} wait too long for a GPU",
        "For 5 minutes {{ $value }} of its members have had nothing awake, and requests that wait.",
        "pool-starving",
    ),
    Alert(
        "DormousePoolFouled",
        'max by (namespace, pool) (dormouse_pool_slots{phase="Fouled"}) > 0',
        "5m",
        "critical",
        "GPUs of the pool {{ $labels.namespace }}/{{ $labels.pool }} are given to nobody",
        "For 5 minutes nobody could tell what is on the devices of {{ $value }} of its slots.",
        "pool-fouled",
    ),
    Alert(
        "DormousePoolThrashing",
        "sum by (namespace, pool)"
        ' (avg_over_time(dormouse_pool_slots{phase=~"Granting|Yielding"}[15m]))'
        f" / sum by (namespace, pool) (avg_over_time(dormouse_pool_slots[15m])) > {SWITCHING_SHARE}",
        "10m",
        "warning",
        "The pool {{ $labels.namespace }}/{{ $labels.pool }} spends its time on switches",
        "{{ $value | humanizePercentage }} of its slots' time in the last 15 minutes served nobody,"
        " as one model left or the next one came.",
        "pool-thrashing",
    ),
    Alert(
        "DormouseErrorBudgetBurnFast",
        f"dormouse:request_failures:ratio_1h > {FAST_BURN} * {BUDGET}"
        f" and dormouse:request_failures:ratio_5m > {FAST_BURN} * {BUDGET}",
        "2m",
        "critical",
        "Requests fail at a rate that uses up a month's error budget in two days",
        "{{ $value | humanizePercentage }} of the requests of the last hour failed.",
        "error-budget-burn",
    ),
    Alert(
        "DormouseErrorBudgetBurnSlow",
        f"dormouse:request_failures:ratio_6h > {SLOW_BURN} * {BUDGET}"
        f" and dormouse:request_failures:ratio_30m > {SLOW_BURN} * {BUDGET}",
        "15m",
        "warning",
        "Requests fail at a rate that uses up a month's error budget in five days",
        "{{ $value | humanizePercentage }} of the requests of the last six hours failed.",
        "error-budget-burn",
    ),
)


def rule_file() -> Mapping[str, Any]:
    """Return all rules, as Prometheus reads them and as the spec of a PrometheusRule."""
    records = [{"record": f"dormouse:request_failures:ratio_{window}", "expr": _failures(window)} for window in WINDOWS]
    return {
        "groups": [
            {"name": "dormouse-records", "rules": records},
            {"name": "dormouse-alerts", "rules": [_rule(alert) for alert in ALERTS]},
        ]
    }


def _failures(window: str) -> str:
    """Return the share of requests that failed through no fault of their client."""
    counter = "dormouse_gateway_requests_total"
    return f"(sum(rate({counter}{{{FAILED}}}[{window}])) or vector(0)) / sum(rate({counter}[{window}]))"


def _rule(alert: Alert) -> Mapping[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.hold,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": f"{RUNBOOKS}/{alert.runbook}.md",
        },
    }
