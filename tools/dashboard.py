"""The Grafana dashboard as data: rows of panels, each a question and the query that answers it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 24  # of Grafana's grid
HEIGHT = 7
WORKER = '{namespace=~"$namespace",model_name=~"$model"}'
NAMESPACE = '{namespace=~"$namespace"}'
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph. `queries` maps a legend to a PromQL expression."""

    title: str
    unit: str  # as Grafana names units
    queries: Mapping[str, str]
    description: str = ""


def quantiles(metric: str, by: str, selector: str = WORKER) -> dict[str, str]:
    """Return median and 99th percentile of a histogram, per value of the label `by`, or of all together."""
    rates = f"sum by (le{by and ', '}{by}) (rate({metric}_bucket{selector}[$__rate_interval]))"
    name = f"{{{{{by}}}}}" if by else metric.split("_")[1]
    return {
        f"p50 {name}": f"histogram_quantile(0.5, {rates})",
        f"p99 {name}": f"histogram_quantile(0.99, {rates})",
    }


def rate(counter: str, by: str, selector: str = WORKER) -> str:
    """Return the increase per second of a counter, per value of the label `by`."""
    return f"sum by ({by}) (rate({counter}{selector}[$__rate_interval]))"


ROWS: Mapping[str, Sequence[Panel]] = {
    "Load": (
        Panel(
            "Requests running and waiting",
            "short",
            {
                "running {{model_name}}": f"sum by (model_name) (vllm:num_requests_running{WORKER})",
                "waiting {{model_name}}": f"sum by (model_name) (vllm:num_requests_waiting{WORKER})",
            },
        ),
        Panel(
            "Tokens per second",
            "short",
            {
                "prompt {{model_name}}": rate("vllm:prompt_tokens_total", "model_name"),
                "generated {{model_name}}": rate("vllm:generation_tokens_total", "model_name"),
            },
        ),
        Panel(
            "Finished requests per second",
            "reqps",
            {"{{finished_reason}}": rate("vllm:request_success_total", "finished_reason")},
        ),
    ),
    "Latency": (
        Panel("Time to first token", "s", quantiles("vllm:time_to_first_token_seconds", "model_name")),
        Panel("Time between tokens", "s", quantiles("vllm:inter_token_latency_seconds", "model_name")),
        Panel("Whole request", "s", quantiles("vllm:e2e_request_latency_seconds", "model_name")),
    ),
    "KV cache": (
        Panel(
            "KV cache in use",
            "percentunit",
            {"{{pod}}": f"vllm:kv_cache_usage_perc{WORKER}"},
            "Share of the agreed blocks that hold tokens of running requests.",
        ),
        Panel(
            "Blocks: reported and agreed",
            "short",
            {
                "reported {{exported_pod}} {{pod}}": f"dormouse_kv_blocks{NAMESPACE}",
                "agreed": f"min(dormouse_kv_blocks_agreed{NAMESPACE})",
            },
            "Every worker reports how many blocks it could hold; all allocate the minimum.",
        ),
    ),
    "Sleep and wake": (
        Panel(
            "Workers by state",
            "short",
            {"{{state}}": f"sum by (state) (dormouse_replicas{NAMESPACE})"},
        ),
        Panel(
            "Engine sleep state",
            "short",
            {"{{sleep_state}}": f"sum by (sleep_state) (vllm:engine_sleep_state{WORKER})"},
        ),
        Panel(
            "Seconds to fall asleep, and until a deployment serves",
            "s",
            {
                **quantiles("dormouse_sleep_seconds", "", NAMESPACE),
                **quantiles("dormouse_actuation_seconds", "path", NAMESPACE),
            },
        ),
        Panel(
            "Memory still held asleep",
            "bytes",
            {"{{exported_pod}} {{pod}}": f"dormouse_gpu_residual_bytes{NAMESPACE}"},
        ),
    ),
    "Gateway": (
        Panel(
            "Requests per second by status code",
            "reqps",
            {"{{code}}": rate("dormouse_gateway_requests_total", "code", NAMESPACE)},
        ),
        Panel(
            "Rejected per second by reason",
            "reqps",
            {"{{reason}}": rate("dormouse_rejected_total", "reason", NAMESPACE)},
        ),
        Panel("Seconds per request", "s", quantiles("dormouse_gateway_request_seconds", "method", NAMESPACE)),
    ),
    "Operator": (
        Panel("Seconds per step of a reconcile", "s", quantiles("dormouse_reconcile_seconds", "step", NAMESPACE)),
        Panel(
            "Reconciles that failed, per second",
            "ops",
            {"{{kind}}": rate("dormouse_reconcile_errors_total", "kind", NAMESPACE)},
        ),
        Panel(
            "Calls to the API server per second",
            "reqps",
            {"{{verb}} {{resource}}": rate("dormouse_kube_requests_total", "verb, resource", NAMESPACE)},
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    """Return the dashboard in Grafana's JSON model."""
    return {
        "uid": "dormouse",
        "title": "Dormouse",
        "tags": ["dormouse", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": variables()},
        "panels": panels(),
    }


def variables() -> list[dict[str, Any]]:
    """Return what a viewer can choose: the data source, namespaces, models."""
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    return [
        source,
        choice("namespace", "Namespace", "label_values(namespace)"),
        choice("model", "Model", 'label_values(vllm:num_requests_running{namespace=~"$namespace"}, model_name)'),
    ]


def choice(name: str, label: str, query: str) -> dict[str, Any]:
    """Return a variable filled by a query; everything is chosen at first."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def panels() -> list[dict[str, Any]]:
    """Return rows and panels with their places: each row's panels share its width."""
    placed: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        placed.append(
            {
                "id": len(placed) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "panels": [],
                "gridPos": place(top),
            }
        )
        top += 1
        width = WIDTH // len(row)
        for column, panel in enumerate(row):
            where = {"x": column * width, "y": top, "w": width, "h": HEIGHT}
            placed.append(graph(panel, number=len(placed) + 1, where=where))
        top += HEIGHT
    return placed


def place(top: int) -> dict[str, int]:
    """Return the place of a row's heading."""
    return {"x": 0, "y": top, "w": WIDTH, "h": 1}


def graph(panel: Panel, *, number: int, where: Mapping[str, int]) -> dict[str, Any]:
    """Return one panel in Grafana's JSON model."""
    targets = [
        {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": query, "legendFormat": legend}
        for index, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": where,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
    }
