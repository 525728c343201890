"""Watches the cluster with kopf. Every event does one thing: it goes to the feed. kopf stores nothing in the objects.

Only event handlers are used: handlers of other kinds would write annotations or finalizers, and wait.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import kopf

from dormouse_kube.api import Kind
from dormouse_operator.cache import SELECTORS
from dormouse_operator.feed import Feed
from dormouse_operator.watch_session import OnCall, open_session

_LOG = logging.getLogger(__name__)
_RESTART_S = 1.0


class Watch(Protocol):
    """Feeds what changes, until `stop` is set; sets it when the process was asked to end."""

    async def __call__(
        self, feed: Feed, *, namespaces: tuple[str, ...], stop: asyncio.Event, on_call: OnCall | None = None
    ) -> None:
        """Watch the namespaces, or all (none named)."""
        ...


async def watch(feed: Feed, *, namespaces: tuple[str, ...], stop: asyncio.Event, on_call: OnCall | None = None) -> None:
    """Watch until `stop` is set. A kopf that gives up (an error inside a stream does that) is started again."""
    while not stop.is_set():
        try:
            await kopf.operator(
                registry=build_registry(feed, on_call),
                settings=build_settings(),
                standalone=True,
                clusterwide=not namespaces,
                namespaces=namespaces,
                stop_flag=stop,
            )
        except Exception as error:  # noqa: BLE001  # what is known stays known, and we go on
            _LOG.warning("the watch ended and is started again: %s", error)
            await asyncio.sleep(_RESTART_S)
        else:
            stop.set()  # kopf got a signal to end


def build_registry(feed: Feed, on_call: OnCall | None = None) -> kopf.OperatorRegistry:
    """Return the handlers: of the resource itself, and of everything that we made for it."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**kwargs: Any) -> kopf.AiohttpSession | None:
        info = kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)
        return open_session(info, feed, on_call) if info else None

    for kind in SELECTORS:
        _register(registry, kind, feed)
    return registry


def _register(registry: kopf.OperatorRegistry, kind: Kind, feed: Feed) -> None:
    """Have every event of a kind go to the feed."""
    group, _, version = kind.api_version.rpartition("/")

    @kopf.on.event(group, version, kind.plural, registry=registry, id=kind.plural)
    async def changed(event: Mapping[str, Any], **_: Any) -> None:
        feed.see(kind, event["object"], is_gone=event["type"] == "DELETED")


def build_settings() -> kopf.OperatorSettings:
    """Return kopf's settings: wait out every outage, watch little, keep little, post nothing."""
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
    for kind, selector in SELECTORS.items():
        if selector:
            settings.watching.label_selectors[kind.plural] = selector
    settings.queueing.error_delays = (1, 2, 5, 10)
    settings.queueing.idle_timeout = 0.05  # for so long the last event of each object stays in memory
    settings.persistence.diffbase_storage = _NoDiffBase()
    settings.posting.enabled = False
    settings.posting.level = logging.WARNING
    settings.posting.loggers = False
    settings.scanning.disabled = True  # the kinds are known and the namespaces are named: no rights to list either
    settings.execution.max_workers = 1  # nothing of ours runs in threads
    return settings


class _NoDiffBase(kopf.DiffBaseStorage):
    """Compares nothing: our handlers hear of every event, and kopf would copy every object for a difference."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        """See DiffBaseStorage."""
        del body, extra_fields  # of interest to nobody
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> None:
        """See DiffBaseStorage."""

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """See DiffBaseStorage."""


class _Backoffs:
    """Pauses between failed requests without an end: kopf would exit after the last one."""

    def __iter__(self) -> Iterator[float]:
        """Yield jittered pauses in seconds, growing to 10."""
        rng = random.Random()  # noqa: S311  # jitter needs no cryptography
        pause_s = 0.5
        while True:
            yield pause_s * rng.uniform(0.5, 1.0)
            pause_s = min(10.0, pause_s * 2)
