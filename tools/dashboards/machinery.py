"""The dashboard of the release itself: the operator's loop and its API server, the gateways' doors and processes."""

from __future__ import annotations

from tools.dashboards.model import Dashboard, Panel
from tools.dashboards.promql import OF_RELEASE, RELEASE, quantiles, rate, total

MACHINERY = Dashboard(
    "dormouse-operator-gateway",
    "Operator and gateway",
    "Whether the operator keeps up, and what comes in at the gateways.",
    [RELEASE],
    {
        "Operator": (
            Panel(
                "Leaders",
                "short",
                {
                    "leaders": total("dormouse_operator_leader", "", OF_RELEASE),
                    "operators": total("dormouse_operator_leader", "", OF_RELEASE, function="count"),
                },
                "Exactly one of the operators leads.",
            ),
            Panel(
                "Epoch of the lease",
                "short",
                {"epoch": total("dormouse_operator_epoch", "", OF_RELEASE, function="max")},
                "It grows whenever another operator takes over.",
            ),
            Panel(
                "Since each watch was heard",
                "s",
                {"{{pod}} {{resource}}": f"dormouse_watch_age_seconds{OF_RELEASE}"},
                "A healthy watch hears a bookmark about once a minute.",
            ),
        ),
        "Reconciling": (
            Panel(
                "Seconds per step of a pass",
                "s",
                quantiles("dormouse_reconcile_seconds", "step", OF_RELEASE),
                "A pass looks at one deployment.",
            ),
            Panel(
                "Failed passes per second",
                "ops",
                {"{{kind}}": f"{rate('dormouse_reconcile_errors_total', 'kind', OF_RELEASE)} or vector(0)"},
                "By kind of failure; each is tried again.",
            ),
            Panel(
                "Deployments that are due",
                "short",
                {"{{pod}}": f"dormouse_queue_depth{OF_RELEASE}"},
                "Not looked at yet.",
            ),
            Panel(
                "Longest due",
                "s",
                {"{{pod}}": f"dormouse_queue_oldest_seconds{OF_RELEASE}"},
                "How long the first of them has been due.",
            ),
        ),
        "API server": (
            Panel(
                "Calls per second",
                "reqps",
                {"{{verb}} {{resource}}": rate("dormouse_kube_requests_total", "verb, resource", OF_RELEASE)},
                "The operator's calls.",
            ),
            Panel(
                "Answers per second by code",
                "reqps",
                {"{{code}}": rate("dormouse_kube_requests_total", "code", OF_RELEASE)},
                "409 is a conflict, which is tried again; 403 a right that is missing.",
            ),
        ),
        "Gateway": (
            Panel(
                "Requests per second by status",
                "reqps",
                {"{{code}}": rate("dormouse_gateway_requests_total", "code", OF_RELEASE)},
                "The gRPC status that the client got.",
            ),
            Panel(
                "HTTP responses per second",
                "reqps",
                {"{{path}} {{status}}": rate("dormouse_gateway_http_responses_total", "path, status", OF_RELEASE)},
                "Of the OpenAI-compatible API.",
            ),
            Panel(
                "Refused per second",
                "reqps",
                {"{{reason}}": rate("dormouse_rejected_total", "reason", OF_RELEASE)},
                "Without asking a worker.",
            ),
            Panel(
                "Being answered",
                "short",
                {"{{pod}}": total("dormouse_gateway_in_flight", "pod", OF_RELEASE)},
                "Requests that a worker is answering now.",
            ),
        ),
        "Faults": (
            Panel(
                "Streams moved per second",
                "reqps",
                {"{{outcome}}": rate("dormouse_migrated_total", "outcome", OF_RELEASE)},
                "Streams that lost their worker after they had begun; done = ended elsewhere.",
            ),
            Panel(
                "Breakers that are not closed",
                "short",
                {"{{pod}}": f"sum by (pod) (dormouse_gateway_breaker{OF_RELEASE} > bool 0)"},
                "Workers to which the gateways send nothing, or one request to try.",
            ),
        ),
        "Processes": (
            Panel(
                "Memory",
                "bytes",
                {"{{pod}}": f"dormouse_process_resident_memory_bytes{OF_RELEASE}"},
                "Resident memory of operators and gateways.",
            ),
            Panel(
                "Processors in use",
                "short",
                {"{{pod}}": rate("dormouse_process_cpu_seconds_total", "pod", OF_RELEASE)},
                "Seconds of a processor per second.",
            ),
            Panel(
                "Open files",
                "short",
                {"{{pod}}": f"dormouse_process_open_fds{OF_RELEASE}"},
                "Sockets included.",
            ),
        ),
    },
)
