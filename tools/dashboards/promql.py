"""Short forms of the PromQL that panels share, and whose series they select."""

from __future__ import annotations

from tools.dashboards.model import Choice

# The operator's series of a deployment carry its namespace and name; the gateways' its full name; a worker's those of
# its pod, which a scrape adds. A pod is called <deployment>-<revision>-<index>.
IN_NAMESPACE = '{namespace=~"$namespace"}'
MODELS_OF_NAMESPACE = '{model=~"($namespace)/.*"}'
OF_DEPLOYMENT = '{namespace=~"$namespace",deployment=~"$deployment"}'
OF_WORKERS = '{namespace=~"$namespace",pod=~"($deployment)-[0-9a-z]+-[0-9]+(-[0-9]+)?"}'
OF_MODEL = '{model=~"($namespace)/($deployment)"}'
OF_RELEASE = '{namespace=~"$release"}'

# Codes by which a request failed through no fault of its client.
FAILED = 'code=~"UNKNOWN|INTERNAL|UNAVAILABLE|DATA_LOSS|DEADLINE_EXCEEDED"'

NAMESPACE = Choice("namespace", "Namespace", "label_values(dormouse_replicas, namespace)")
DEPLOYMENT = Choice("deployment", "Deployment", 'label_values(dormouse_replicas{namespace=~"$namespace"}, deployment)')
RELEASE = Choice("release", "Namespace of the release", "label_values(dormouse_operator_leader, namespace)")


def rate(counter: str, by: str, selector: str) -> str:
    """Return the increase per second of a counter, per value of the labels `by`; "" = all together."""
    return f"sum{_by(by)}(rate({counter}{selector}[$__rate_interval]))"


def quantiles(histogram: str, by: str, selector: str, *, legend: str = "") -> dict[str, str]:
    """Return median and 99th percentile of a histogram, per value of the label `by`; "" = all together."""
    rates = rate(f"{histogram}_bucket", f"le, {by}" if by else "le", selector)
    name = legend or (f"{{{{{by}}}}}" if by else "all")
    return {
        f"p50 {name}": f"histogram_quantile(0.5, {rates})",
        f"p99 {name}": f"histogram_quantile(0.99, {rates})",
    }


def total(gauge: str, by: str, selector: str, *, function: str = "sum") -> str:
    """Return a gauge added up (or its max, min, …) per value of the labels `by`; "" = all together."""
    return f"{function}{_by(by)}({gauge}{selector})"


def with_label(selector: str, matcher: str) -> str:
    """Return the selector with one more matcher."""
    return f"{selector[:-1]},{matcher}}}"


def _by(labels: str) -> str:
    return f" by ({labels}) " if labels else ""
