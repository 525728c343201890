"""`python -m dormouse_gateway`: reads the settings, logs in to Kubernetes, runs until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys

import uvloop

from dormouse_api.outlets import unhindered_outputs
from dormouse_api.tracing import BadTracing, Tracing, start_tracing
from dormouse_gateway.call import UNTRACED, Traces
from dormouse_gateway.descriptors import raise_limit
from dormouse_gateway.seeds import Seeds, read_seeds
from dormouse_gateway.server import Gateway
from dormouse_gateway.settings import Settings
from dormouse_gateway.variables import BadSetting
from dormouse_kube.client import KubeClient
from dormouse_kube.errors import KubeError


def main() -> None:
    """Run the gateway; end with 0 after a drain, with 2 when it cannot start."""
    try:
        settings = Settings.from_env({**os.environ, **_flags()})
        seeds = read_seeds(settings.tokens_dir)
    except BadSetting as error:
        sys.exit(_complain(error))
    with unhindered_outputs():
        _serve(settings, seeds)


def _serve(settings: Settings, seeds: Seeds) -> None:
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    raise_limit()
    tracing: Tracing | None = None
    try:
        tracing = start_tracing(settings.tracing, service="dormouse-gateway", host_name=socket.gethostname())
        uvloop.run(_run(settings, seeds, _traces(tracing)))
    except (BadSetting, BadTracing, KubeError, OSError, RuntimeError) as error:
        sys.exit(_complain(error))
    finally:
        if tracing:
            tracing.close()


def command_line() -> argparse.ArgumentParser:
    """Return the program's command line; a flag stands in for the variable that is its `dest`."""
    parser = argparse.ArgumentParser("dormouse-gateway", description="Everything else is set by variables: DORMOUSE_….")
    add = parser.add_argument
    add("--router-policy", dest="DORMOUSE_ROUTER_POLICY", metavar="NAME", help="who chooses among a model's workers")
    add(
        "--affinity-bound",
        dest="DORMOUSE_AFFINITY_BOUND",
        metavar="FACTOR",
        help="with prefix-affinity: how many times the mean of outstanding tokens a worker may have",
    )
    add(
        "--tracing-endpoint",
        dest="--tracing-endpoint",
        metavar="http://HOST:PORT",
        help="collector of spans, OTLP over gRPC (default: OTEL_EXPORTER_OTLP_ENDPOINT; none = no tracing)",
    )
    return parser


def _flags() -> dict[str, str]:
    """Return what the command line sets, by the variable that it stands in for. Ends the program if it is bad."""
    return {name: value for name, value in vars(command_line().parse_args()).items() if value is not None}


def _traces(tracing: Tracing | None) -> Traces:
    """Return who makes spans. OpenTelemetry is imported where tracing is on, only."""
    if tracing is None:
        return UNTRACED
    from dormouse_gateway.telemetry.spans import OtelTraces

    return OtelTraces(tracing.tracer)


async def _run(settings: Settings, seeds: Seeds, traces: Traces) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with await KubeClient.connect() as api:
        gateway = Gateway(settings, seeds, api, traces=traces)
        await gateway.start()
        await gateway.run(stop)


def _complain(error: Exception) -> int:
    print(f"dormouse-gateway cannot run: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
