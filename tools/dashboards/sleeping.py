"""The dashboard of what this project is for: sleep, wake, what is held meanwhile, and the memory of both."""

from __future__ import annotations

from tools.dashboards.model import Dashboard, Panel
from tools.dashboards.promql import (
    DEPLOYMENT,
    IN_NAMESPACE,
    NAMESPACE,
    OF_DEPLOYMENT,
    OF_MODEL,
    OF_WORKERS,
    quantiles,
    rate,
    total,
)

_ALL_RELEASES = "{}"  # the operator counts these over all deployments

SLEEPING = Dashboard(
    "dormouse-sleep",
    "Sleep, wake and memory",
    "Who sleeps, how long waking takes, who waits for it, how pools take turns, and what sleepers keep.",
    [NAMESPACE, DEPLOYMENT],
    {
        "Who sleeps": (
            Panel(
                "Replicas by state",
                "short",
                {"{{state}}": total("dormouse_replicas", "state", OF_DEPLOYMENT)},
                "As the operator sees them.",
            ),
            Panel(
                "Engines by sleep state",
                "short",
                {"{{sleep_state}}": total("vllm:engine_sleep_state", "sleep_state", OF_WORKERS)},
                "weights_offloaded is level 1 (weights in host memory), discard_all level 2 (nothing kept).",
            ),
        ),
        "How long it takes": (
            Panel(
                "Seconds until a deployment serves",
                "s",
                quantiles("dormouse_actuation_seconds", "path", _ALL_RELEASES),
                "level1 and level2 woke from there, level3 started an engine, cold a pod. Over all deployments.",
            ),
            Panel(
                "Seconds of a wake by phase",
                "s",
                quantiles("dormouse_wake_seconds", "phase", OF_WORKERS),
                "Inside the worker; total is the whole.",
            ),
            Panel(
                "Seconds to fall asleep",
                "s",
                quantiles("dormouse_sleep_seconds", "pod", OF_WORKERS),
                "From the order until the memory is given back.",
            ),
        ),
        "Who waits": (
            Panel(
                "Requests held",
                "short",
                {"{{model}}": total("dormouse_held_requests", "model", OF_MODEL)},
                "They wait in the gateways until a worker takes them.",
            ),
            Panel(
                "Seconds held",
                "s",
                quantiles("dormouse_hold_seconds", "model", OF_MODEL),
                "Requests that needed not wait are left out.",
            ),
            Panel(
                "Refused per second",
                "reqps",
                {"{{reason}}": rate("dormouse_rejected_total", "reason", "{}")},
                "Requests that the gateways refused by themselves. Over all models.",
            ),
        ),
        "Pools": (
            Panel(
                "Slots by phase",
                "short",
                {"{{pool}} {{phase}}": total("dormouse_pool_slots", "pool, phase", IN_NAMESPACE)},
                "Held serves; Granting and Yielding change hands; Fouled is given to nobody.",
            ),
            Panel(
                "Switches per second",
                "ops",
                {"{{pool}}": rate("dormouse_pool_switches_total", "pool", IN_NAMESPACE)},
                "Times that another replica came to serve on a slot.",
            ),
            Panel(
                "Members that wait for a slot",
                "short",
                {
                    "waiting {{pool}}": total("dormouse_pool_waiting_members", "pool", IN_NAMESPACE),
                    "starving {{pool}}": total("dormouse_pool_starving_members", "pool", IN_NAMESPACE),
                },
                "Starving ones have nothing awake, and have waited longer than any should.",
            ),
            Panel(
                "Longest wait for a slot",
                "s",
                {"{{pool}}": total("dormouse_pool_longest_wait_seconds", "pool", IN_NAMESPACE, function="max")},
                "Of the members that wait now.",
            ),
            Panel(
                "Grants that brought nobody to serve, per second",
                "ops",
                {"{{pool}} {{reason}}": rate("dormouse_pool_refused_grants_total", "pool, reason", IN_NAMESPACE)},
                "By reason; each is tried again, later each time.",
            ),
        ),
        "Memory": (
            Panel(
                "Still held asleep",
                "bytes",
                {"{{pod}} rank {{rank}}": f"dormouse_gpu_residual_bytes{OF_DEPLOYMENT}"},
                "Device memory that a rank's process keeps after it fell asleep.",
            ),
            Panel(
                "Copies in host memory",
                "bytes",
                {"{{pod}}": f"dormouse_host_copy_bytes{OF_WORKERS}"},
                "Of weights and KV cache, for a fast wake.",
            ),
            Panel(
                "Blocks of KV cache",
                "short",
                {"{{pod}}": f"dormouse_kv_blocks_allocated{OF_WORKERS}"},
                "0 before the first agreement.",
            ),
            Panel(
                "Engines started again",
                "ops",
                {"{{pod}}": rate("dormouse_engine_restarts_total", "pod", OF_WORKERS)},
                "Engine processes per second that replaced one that died.",
            ),
        ),
    },
)
