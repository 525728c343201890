"""How a command reaches a model: an address that is given, what listens here, or the cluster's gateway, forwarded.

The clients are synchronous and forwarding is not: it runs in a thread of its own as long as the command does.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dormouse_api.client import Client, ClientError, RetryPolicy, Tls, Unreachable
from dormouse_api.names import HTTP_PORT, INFERENCE_PORT
from dormouse_cli import find
from dormouse_cli.cluster import Cluster, Open, Target, kube_errors
from dormouse_cli.errors import CommandFailed
from dormouse_cli.exit_codes import ExitCode
from dormouse_cli.traces import traced
from dormouse_cli.world import World
from dormouse_kube.api import PODS, SERVICES, Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What the user said of the way to the model."""

    address: str | None
    api_key: str | None
    tls: bool
    tls_ca: str | None
    target: Target


@dataclass(frozen=True, slots=True)
class Found:
    """A port that leads to a model."""

    port: int
    model: str  # the full name, by which a gateway knows it
    host: str  # the gateway's own name, which its certificate holds


@dataclass(frozen=True, slots=True)
class Door:
    """An address that leads to a model."""

    address: str
    model: str  # the name by which it is known there
    host: str = ""  # the name in the certificate, where it is not that of the address


@contextmanager
def reached(way: Way, model: str, world: World, *, timeout_s: float) -> Iterator[tuple[Client, str]]:
    """Give a client and the model's name there. Raises CommandFailed only, also for what the calls in it raise."""
    with (
        door(way, model, world) as there,
        connected(way, there.address, timeout_s=timeout_s, server_name=there.host) as client,
    ):
        yield client, there.model


@contextmanager
def door(way: Way, model: str, world: World, port: int = INFERENCE_PORT) -> Iterator[Door]:
    """Give the address that leads to the model, forwarded as long as the caller needs it. Raises CommandFailed.

    `port` is the gateway's: of gRPC, or HTTP_PORT.
    """
    here = world.http_here if port == HTTP_PORT else world.here
    if way.address or is_listening(here):
        yield Door(way.address or here, model)
        return
    with _or_say_both(here), found(world.open, way.target, model, port) as there:
        yield Door(f"127.0.0.1:{there.port}", there.model, there.host)


@contextmanager
def _or_say_both(here: str) -> Iterator[None]:
    """Where there is no cluster either, say both."""
    try:
        yield
    except CommandFailed as error:
        if error.code is not ExitCode.NO_CLUSTER:
            raise
        message = f"nothing listens on {here} (see --address), and of a cluster: {error}"
        raise CommandFailed(message, code=error.code) from error


@contextmanager
def connected(way: Way, address: str, *, timeout_s: float, server_name: str = "") -> Iterator[Client]:
    """Give a client for an address; what it raises becomes one sentence."""
    try:
        tls = tls_of(way, server_name)
        never = RetryPolicy.never()
        with (
            traced(os.environ, warn) as tracer,
            Client(address, api_key=way.api_key, tls=tls, timeout_s=timeout_s, retry=never, tracer=tracer) as client,
        ):
            yield client
    except ClientError as error:
        raise explain(error, address) from error


def warn(message: str) -> None:
    """Say something beside the answer."""
    sys.stderr.write(f"{message}\n")


def explain(error: ClientError, address: str) -> CommandFailed:
    """Return what to tell: the server's own words, or, if none answered, where nobody did."""
    if isinstance(error, Unreachable):
        return CommandFailed(f"nothing answers at {address}: {error}")
    hint = f" (try again in {error.retry_after_s:g} s)" if error.retry_after_s is not None else ""
    if error.code.name == "UNIMPLEMENTED":
        hint = f"; the server at {address} is older than this command line, or serves something else"
    return CommandFailed(f"{error.code.name}: {error}{hint}")


def tls_of(way: Way, server_name: str) -> Tls | None:
    """Return how to speak TLS, None for not at all. Raises CommandFailed if the CA cannot be read."""
    if not way.tls and way.tls_ca is None:
        return None
    try:
        roots = Path(way.tls_ca).read_bytes() if way.tls_ca else None
    except OSError as error:
        raise CommandFailed(f"--tls-ca {way.tls_ca} cannot be read: {error}", code=ExitCode.USAGE) from error
    return Tls(roots=roots, server_name=server_name)


def is_listening(address: str) -> bool:
    """Return whether something takes connections there; refusing is at once on one's own machine."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=0.5):
            return True
    except OSError:
        return False


@contextmanager
def found(open_: Open, target: Target, model: str, port: int) -> Iterator[Found]:
    """Forward a port to a gateway that serves the model, as long as the caller needs it."""
    ready: Future[Found] = Future()
    loop = asyncio.new_event_loop()
    done = asyncio.Event()

    def work() -> None:
        try:
            loop.run_until_complete(_forward(open_, target, (model, port), ready, done))
        except BaseException as error:  # noqa: BLE001  # it is raised where the caller waits
            if not ready.done():
                ready.set_exception(error)
        finally:
            loop.close()

    thread = threading.Thread(target=work, name="port-forward", daemon=True)
    thread.start()
    try:
        yield ready.result()
    finally:
        with suppress(RuntimeError):  # it ended by itself
            loop.call_soon_threadsafe(done.set)
        thread.join()


async def _forward(open_: Open, target: Target, to: tuple[str, int], ready: Future[Found], done: asyncio.Event) -> None:
    model, pod_port = to
    async with open_(target) as opened:
        with kube_errors(opened.cluster.address):
            base, colon, adapter = model.partition(":")
            raw = await find.deployment(opened.cluster, *_names(base, opened.namespace))
            namespace, pod, host = await gateway_of(opened.cluster, raw)
            metadata = raw["metadata"]
            full_name = f"{metadata['namespace']}/{metadata['name']}{colon}{adapter}"
            async with opened.cluster.forward(namespace, pod, pod_port) as port:
                ready.set_result(Found(port, full_name, host))
                await done.wait()


def _names(model: str, namespace: str) -> tuple[str, str]:
    """Return namespace and name that a model's name means."""
    first, slash, rest = model.partition("/")
    return (first, rest) if slash else (namespace, model)


async def gateway_of(cluster: Cluster, raw: Resource) -> tuple[str, str, str]:
    """Return namespace and name of a ready pod of the deployment's gateway, and the gateway's host name."""
    name = raw["metadata"]["name"]
    host = str((raw.get("status") or {}).get("url") or "").rpartition(":")[0]
    service_name, _, rest = host.partition(".")
    namespace = rest.partition(".")[0]
    if not (service_name and namespace):
        raise CommandFailed(f"the status of {name} names no gateway (status.url); give one with --address")
    service = await cluster.get(SERVICES, namespace, service_name)
    if service is None:
        message = f"the gateway's Service {namespace}/{service_name} is not there; give an --address"
        raise CommandFailed(message, code=ExitCode.NOT_FOUND)
    selector = ",".join(f"{key}={value}" for key, value in sorted((service["spec"].get("selector") or {}).items()))
    pods = (await cluster.list(PODS, namespace, label_selector=selector)).items
    ready = sorted(pod["metadata"]["name"] for pod in pods if _is_ready(pod))
    if not ready:
        raise CommandFailed(f"no pod of the gateway {namespace}/{service_name} is ready; dormouse doctor tells why")
    return namespace, ready[0], host


def _is_ready(pod: Resource) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    is_ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
    return is_ready and "deletionTimestamp" not in pod["metadata"]
