"""Flags of serving: where the front listens, how long it waits for what, and how much it lets in."""

from __future__ import annotations

import argparse

from dormouse_api.names import CONTROL_PORT, INFERENCE_PORT, METRICS_PORT
from dormouse_worker.front.flags import flag_types
from dormouse_worker.front.flags.engine import add_engine_care_flags, add_grant_flags, add_runtime_flags
from dormouse_worker.front.images.limits import ImageLimits
from dormouse_worker.front.speech.limits import AudioLimits


def add_serving_flags(group: argparse._ArgumentGroup) -> None:
    """Add them; `settings` reads them."""
    _add_addresses(group)
    _add_grace(group)
    _add_limits(group)
    _add_images(group)
    _add_sounds(group)
    add_engine_care_flags(group)
    add_runtime_flags(group)
    group.add_argument(
        "--standalone",
        action="store_true",
        help="wait for no operator: allocate what was measured and serve; this is what `dormouse serve` runs",
    )
    add_grant_flags(group)
    _add_telling(group)


def _add_addresses(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--host", default="[::]", help="address to listen on (default [::]: every address)")
    add("--port", default=INFERENCE_PORT, type=flag_types.port, help=f"Inference over gRPC (default {INFERENCE_PORT})")
    add(
        "--control-port",
        default=CONTROL_PORT,
        type=flag_types.port,
        help=f"WorkerControl over gRPC (default {CONTROL_PORT})",
    )
    add(
        "--local-socket",
        default="",
        metavar="PATH",
        help="also serve Inference at this unix socket, in plain, for the HTTP API in the same pod",
    )
    add(
        "--metrics-port",
        default=METRICS_PORT,
        type=flag_types.port,
        help=f"/metrics, /healthz and /readyz over HTTP (default {METRICS_PORT})",
    )


def _add_grace(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--drain-timeout",
        default=60.0,
        type=flag_types.seconds,
        metavar="SECONDS",
        help="how long running requests may go on after SIGTERM (default 60)",
    )
    add(
        "--prepared-timeout",
        default=60.0,
        type=flag_types.positive_seconds,
        metavar="SECONDS",
        help="how long a prepared sleep or wake waits for its second phase before it is taken back (default 60)",
    )


def _add_limits(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--max-waiting-requests",
        default=1024,
        type=flag_types.integer(1),
        metavar="N",
        help="requests without a token yet; more are refused (default 1024)",
    )
    add(
        "--max-open-calls",
        default=4096,
        type=flag_types.integer(1),
        metavar="N",
        help="calls of any kind at once on one port; more are refused (default 4096)",
    )
    add(
        "--default-timeout-seconds",
        default=600.0,
        type=flag_types.positive_seconds,
        metavar="SECONDS",
        help="how long a request without a deadline may take (default 600)",
    )
    add(
        "--max-timeout-seconds",
        default=3600.0,
        type=flag_types.positive_seconds,
        metavar="SECONDS",
        help="how long any request may take; longer deadlines are cut to it (default 3600)",
    )


def _add_images(group: argparse._ArgumentGroup) -> None:
    usual = ImageLimits()
    group.add_argument(
        "--max-image-pixels",
        default=usual.max_pixels,
        type=flag_types.integer(1),
        metavar="N",
        help=f"width × height of an image; larger ones are refused, not decoded (default {usual.max_pixels})",
    )
    group.add_argument(
        "--image-cache-bytes",
        default=usual.cache_bytes,
        type=flag_types.size_in_bytes,
        metavar="SIZE",
        help="processed images in the pod's shared memory, in use or kept for the next question; at most half of what "
        "is free there at the start (default 512Mi)",
    )


def _add_sounds(group: argparse._ArgumentGroup) -> None:
    usual = AudioLimits()
    group.add_argument(
        "--max-audio-seconds",
        default=usual.max_seconds,
        type=flag_types.positive_seconds,
        metavar="SECONDS",
        help="how long a sound may last; longer ones are refused, not decoded (default 7200)",
    )


def _add_telling(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--enable-reflection", action="store_true", help="let clients ask the serving port for its schema")
    add(
        "--tracing-endpoint",
        default="",
        metavar="http://HOST:PORT",
        help="collector of spans, OTLP over gRPC (default: OTEL_EXPORTER_OTLP_ENDPOINT; none = no tracing)",
    )
    add("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"), help="default INFO")
