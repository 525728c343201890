"""Watches the cluster with kopf. Every event does one thing: it marks a key. kopf stores nothing in the objects.

Only event handlers are used: handlers of other kinds would write annotations or finalizers, and wait.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import kopf

from dormouse_api.names import COMPONENT_WORKER, GROUP, LABEL_COMPONENT, LABEL_DEPLOYMENT, PLURAL, VERSION
from dormouse_operator.model import Key

_LOG = logging.getLogger(__name__)
_RESTART_S = 1.0

Mark = Callable[[Key], None]


class Watch(Protocol):
    """Marks what changes, until `stop` is set; sets it when the process was asked to end."""

    async def __call__(self, mark: Mark, *, namespaces: tuple[str, ...], stop: asyncio.Event) -> None:
        """Watch the namespaces, or all (none named)."""
        ...


async def watch(mark: Mark, *, namespaces: tuple[str, ...], stop: asyncio.Event) -> None:
    """Watch until `stop` is set. A kopf that gives up (an error inside a stream does that) is started again."""
    while not stop.is_set():
        try:
            await kopf.operator(
                registry=build_registry(mark),
                settings=build_settings(),
                standalone=True,
                clusterwide=not namespaces,
                namespaces=namespaces,
                stop_flag=stop,
            )
        except Exception as error:  # noqa: BLE001  # the resync goes on without the watch, and so do we
            _LOG.warning("the watch ended and is started again: %s", error)
            await asyncio.sleep(_RESTART_S)
        else:
            stop.set()  # kopf got a signal to end


def build_registry(mark: Mark) -> kopf.OperatorRegistry:
    """Return the handlers: of the resource itself, and of everything that we made for it."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def deployment_changed(namespace: str | None, name: str, **_: Any) -> None:
        mark(Key(namespace or "", name))

    @kopf.on.event("", "v1", "pods", labels={LABEL_DEPLOYMENT: kopf.PRESENT}, registry=registry)
    @kopf.on.event("", "v1", "services", labels={LABEL_DEPLOYMENT: kopf.PRESENT}, registry=registry)
    @kopf.on.event("policy", "v1", "poddisruptionbudgets", labels={LABEL_DEPLOYMENT: kopf.PRESENT}, registry=registry)
    async def child_changed(namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        mark(Key(namespace or "", labels[LABEL_DEPLOYMENT]))

    return registry


def build_settings() -> kopf.OperatorSettings:
    """Return kopf's settings: wait out every outage, watch little, post nothing."""
    settings = kopf.OperatorSettings()
    settings.networking.error_backoffs = _Backoffs()
    settings.networking.enforce_retry_after = True
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = 70
    settings.watching.chunk_size = 500
    settings.watching.label_selectors["pods"] = f"{LABEL_DEPLOYMENT},{LABEL_COMPONENT}={COMPONENT_WORKER}"
    settings.watching.label_selectors["services"] = LABEL_DEPLOYMENT
    settings.watching.label_selectors["poddisruptionbudgets"] = LABEL_DEPLOYMENT
    settings.queueing.error_delays = (1, 2, 5, 10)
    settings.queueing.idle_timeout = 1.0  # the end of the operator waits for it
    settings.posting.enabled = False
    settings.posting.level = logging.WARNING
    settings.posting.loggers = False
    settings.scanning.disabled = True  # the kinds are known and the namespaces are named: no rights to list either
    settings.execution.max_workers = 1  # nothing of ours runs in threads
    return settings


class _Backoffs:
    """Pauses between failed requests without an end: kopf would exit after the last one."""

    def __iter__(self) -> Iterator[float]:
        """Yield jittered pauses in seconds, growing to 10."""
        rng = random.Random()  # noqa: S311  # jitter needs no cryptography
        pause_s = 0.5
        while True:
            yield pause_s * rng.uniform(0.5, 1.0)
            pause_s = min(10.0, pause_s * 2)
