"""Every metric that operator, gateway and worker publish, as their own registries tell it; what its labels mean.

`python -m tools.metric_catalogue` writes docs/reference/metrics.md; with --check it only compares.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families

from dormouse_gateway.router import Router
from dormouse_gateway.telemetry.metrics import Metrics as GatewayMetrics
from dormouse_operator.decide.findings import find
from dormouse_operator.deployment_metrics import DeploymentMetrics
from dormouse_operator.metrics import Metrics as OperatorMetrics
from dormouse_operator.testing.nouns import a_situation, a_worker
from dormouse_worker.front.certificate import show_expiry
from dormouse_worker.front.telemetry.metrics import WorkerMetrics
from tools.bootstrap import ROOT

PAGE = ROOT / "docs/reference/metrics.md"
_ADDED = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",)}

# What each label says, and why it has few values: a label that is not here may not be used.
LABELS: Mapping[str, str] = {
    "namespace": "namespace of an InferenceDeployment; one for each that there is",
    "deployment": "name of an InferenceDeployment; its series go with it",
    "model": "namespace/name of a deployment that there is, or `unknown`; goes with the deployment",
    "key": "name of an API key, empty for none; after the first thousand `other`",
    "part": "prompt, cached or completion",
    "model_name": "the name that the worker serves; one in each worker",
    "position": "place in a draft, from 0; as many as --num-speculative-tokens",
    "max_lora": "slots for adapters; one value in each worker",
    "running_lora_adapters": "names of at most 64 adapters; the series of before goes",
    "waiting_lora_adapters": "names of at most 64 adapters; the series of before goes",
    "pod": "a worker's pod; its series go with it",
    "pool": "name of a GpuPool; its series go with it",
    "rank": "rank in a replica, from 0; tensor × pipeline parallel size",
    "state": "state of a replica (ten) or of an endpoint (three)",
    "step": "step of a pass; those of the code, under twenty",
    "kind": "kind of failure: temporary, permanent, unexpected and the like; those of the code",
    "path": "how a deployment came to serve (level1, level2, level3, cold); of HTTP, a path of the API or `other`",
    "verb": "verb of Kubernetes' API, under ten",
    "resource": "kind of object that is asked for or watched, under fifteen",
    "code": "gRPC status (17) or HTTP status of the API server (under twenty)",
    "method": "method of the Inference service, or `unknown`; under ten",
    "reason": "why the gateway refused, or why a grant brought nobody to serve; those of the code, under twenty",
    "status": "HTTP status, under twenty",
    "outcome": "how it went; two to four words of the code",
    "finished_reason": "why a request ended: stop, length, abort, error and the like",
    "phase": "phase of a wake, under ten, total is the whole; of a pool's slot, five",
    "holder": "whose certificate: operator or authority",
    "sleep_state": "awake, weights_offloaded (level 1), discard_all (level 2)",
    "block_size": "tokens per block; one value at a time",
    "num_gpu_blocks": "blocks on the device; one value at a time",
    "num_cpu_blocks": "blocks in host memory; one value at a time",
    "gpu_memory_utilization": "share of the device that may be used; one value at a time",
}
_UNITS_BY_END = {
    "_seconds": "seconds",
    "_bytes": "bytes",
    "_perc": "ratio, 0 to 1",
    "_info": "always 1",
    "_tokens": "tokens",
    "_requests": "requests",
}
_UNITS: Mapping[str, str] = {
    "dormouse_deployment_ready": "0 or 1",
    "dormouse_engine_restarts": "processes",
    "dormouse_gateway_breaker": "0, 1 or 2",
    "dormouse_gateway_endpoints": "pods",
    "dormouse_gateway_http_responses": "responses",
    "dormouse_gateway_canaries_aborted": "canaries",
    "dormouse_gateway_in_flight": "requests",
    "dormouse_gateway_prefix_affinity": "requests",
    "dormouse_kv_blocks": "blocks",
    "dormouse_adapters": "adapters",
    "dormouse_draft_model_failures": "passes",
    "dormouse_kv_blocks_agreed": "blocks",
    "dormouse_kv_blocks_allocated": "blocks",
    "dormouse_kv_store_fetched": "blocks",
    "dormouse_kv_store_found": "blocks",
    "dormouse_kv_store_handed_over": "blocks",
    "dormouse_kv_store_hits": "blocks",
    "dormouse_kv_store_misses": "blocks",
    "dormouse_kv_store_writes": "blocks",
    "dormouse_migrated": "streams",
    "dormouse_operator_epoch": "number",
    "dormouse_operator_leader": "0 or 1",
    "dormouse_process_max_fds": "file descriptors",
    "dormouse_process_open_fds": "file descriptors",
    "dormouse_pool_refused_grants": "grants",
    "dormouse_pool_slots": "slots",
    "dormouse_pool_starving_members": "deployments",
    "dormouse_pool_switches": "switches",
    "dormouse_pool_waiting_members": "deployments",
    "dormouse_queue_depth": "deployments",
    "dormouse_reconcile_errors": "passes",
    "dormouse_rejected": "requests",
    "dormouse_replicas": "replicas",
    "dormouse_spare_replicas": "pods",
    "dormouse_usage_requests": "requests",
    "dormouse_usage_tokens": "tokens",
    "dormouse_requests_not_finite": "requests",
    "vllm:engine_sleep_state": "0 or 1",
    "vllm:lora_requests_info": "seconds",
    "vllm:mm_cache_hits": "images, steps of videos, sounds",
    "vllm:mm_cache_queries": "images, steps of videos, sounds",
    "vllm:num_preemptions": "requests",
    "vllm:num_requests_running": "requests",
    "vllm:num_requests_waiting": "requests",
    "vllm:prefix_cache_hits": "tokens",
    "vllm:prefix_cache_queries": "tokens",
    "vllm:request_success": "requests",
    "vllm:spec_decode_num_drafts": "drafts",
    "vllm:spec_decode_num_accepted_tokens_per_pos": "tokens",
}


@dataclass(frozen=True, slots=True, order=True)
class Described:
    """One metric of one part. `name` is without what counters and histograms add."""

    part: str
    name: str
    kind: str
    help: str
    labels: tuple[str, ...]

    @property
    def sample_names(self) -> tuple[str, ...]:
        """Return the names under which a query finds it."""
        return tuple(f"{self.name}{added}" for added in _ADDED[self.kind])

    @property
    def unit(self) -> str:
        """Return its unit, "" if none is known."""
        ends = (unit for end, unit in _UNITS_BY_END.items() if self.name.endswith(end))
        return _UNITS.get(self.name) or next(ends, "")


def catalogue() -> list[Described]:
    """Return all metrics, by part and name."""
    gateway, worker = GatewayMetrics(), WorkerMetrics("tiny", clock=float)
    gateway.watch(Router(on_close=lambda _: None))
    gateway.follow_certificate(float)
    show_expiry(worker._registry, float)  # noqa: SLF001  # in a worker it has a registry of its own
    worker.follow_adapters(1, set, set)
    operator = OperatorMetrics()
    operator.follow_watches(dict)
    operator.follow_certificates({"operator": float})
    parts: Mapping[str, Any] = {"operator": operator, "gateway": gateway, "worker": worker}
    found = [one for part, metrics in parts.items() for one in _of_registry(part, metrics._registry)]  # noqa: SLF001  # each owns one
    return sorted([*found, *_of_deployments()])


def _of_registry(part: str, registry: CollectorRegistry) -> Iterator[Described]:
    """Yield what a registry holds; it tells of the labels of a metric without samples only in private."""
    for collector in list(registry._collector_to_names):  # noqa: SLF001
        if isinstance(collector, MetricWrapperBase):
            family = next(iter(collector.describe()))
            yield _described(part, family, collector._labelnames)  # noqa: SLF001
        else:
            is_process = isinstance(collector, ProcessCollector)
            for family in collector.collect():
                yield _described(part, family, () if is_process else family._labelnames)  # type: ignore[attr-defined]  # noqa: SLF001


def _of_deployments() -> Iterator[Described]:
    """Yield what the operator writes line by line: the labels are those of real lines."""
    shown = DeploymentMetrics()
    rank = {"pod": "p", "rank": 0, "numGpuBlocks": 1, "residualBytes": 0}
    seen = a_situation(a_worker())
    cache, adapters = {"numGpuBlocks": 1, "ranks": [rank]}, [{"state": "Loaded"}]
    shown.show(seen, find(seen), {"kvCache": cache, "adapters": adapters, "spareReplicas": 1})
    for family in text_string_to_metric_families(shown.render().decode()):
        yield _described("operator", family, tuple(family.samples[0].labels))


def _described(part: str, family: Metric, labels: tuple[str, ...]) -> Described:
    return Described(part, family.name, family.type, family.documentation, tuple(sorted(labels)))


def page(metrics: list[Described]) -> str:
    """Return docs/reference/metrics.md."""
    parts = [_INTRODUCTION]
    for part, where in _PARTS.items():
        rows = [_row(one) for one in metrics if one.part == part]
        parts.append(
            f"## {part.capitalize()}\n\n{where}\n\n{_table('Name', 'Kind', 'Unit', 'Labels', 'What', rows=rows)}"
        )
    labels = [f"| `{label}` | {words} |" for label, words in LABELS.items()]
    parts.append(
        f"## Labels\n\nEvery label has few values, whatever clients send.\n\n{_table('Label', 'Values', rows=labels)}"
    )
    return "\n\n".join(parts) + "\n"


def _row(one: Described) -> str:
    name = f"{one.name}_total" if one.kind == "counter" else one.name
    labels = ", ".join(f"`{label}`" for label in one.labels)
    return f"| `{name}` | {one.kind} | {one.unit} | {labels} | {one.help.rstrip('.')} |"


def _table(*heads: str, rows: list[str]) -> str:
    return "\n".join([f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *rows])


_INTRODUCTION = """# Metrics

<!-- Made by `python -m tools.metric_catalogue` from the programs' own registries; not edited by hand. -->

Operator, gateways and workers each publish `/metrics` on port 8080, in Prometheus' text format. The workers' engine
metrics keep vLLM's names, so that dashboards and autoscalers of the field read them.

Scrapes must keep the operator's labels (`honorLabels: true`): its series of a deployment carry that deployment's
namespace, and those of a rank the worker's pod. To all others a scrape adds `namespace` and `pod` of the process; the
dashboards need both. `dormouse_kv_blocks`, `dormouse_gpu_residual_bytes` and
`dormouse_sleep_seconds` come from the operator and from workers; the operator's first two carry `deployment`.

A histogram has `_bucket`, `_sum` and `_count`. `process_…` metrics have the prefix `dormouse_`; a worker's are those of
its front."""
_PARTS = {
    "operator": "Every operator publishes these; metrics of deployments come from the leader.",
    "gateway": "Every gateway reports its own requests: sum over gateways.",
    "worker": "Every worker pod reports its own.",
}


def main() -> None:
    """Write, or with --check say that it differs and fail."""
    text = page(catalogue())
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, "utf-8")
    elif not PAGE.exists() or PAGE.read_text("utf-8") != text:
        sys.exit("docs/reference/metrics.md is not what `python -m tools.metric_catalogue` makes")


if __name__ == "__main__":
    main()
