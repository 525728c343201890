"""Watches the cluster with kopf. Every event does one thing: it goes to the feed. kopf stores nothing in the objects.

Only event handlers are used: handlers of other kinds would write annotations or finalizers, and wait.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import kopf

from dormouse_kube.api import Kind, Resource
from dormouse_operator.watch.cache import SELECTORS
from dormouse_operator.watch.feed import Feed, Listener, Scope
from dormouse_operator.watch.sessions import OnCall, WatchSessions
from dormouse_operator.watch.threads import run_in_thread

_LOG = logging.getLogger(__name__)
_RESTART_S = 1.0
DEAF_S = 400.0  # a watch is connected anew every 300 s at the latest
_BEGIN_S = 10.0  # for so long kopf may take to begin its watches


class Watch(Protocol):
    """Feeds what changes until it is cancelled."""

    async def __call__(self, feed: Feed, *, namespaces: tuple[str, ...], on_call: OnCall | None = None) -> None:
        """Watch the namespaces, or all (none named)."""
        ...


async def watch(feed: Feed, *, namespaces: tuple[str, ...], on_call: OnCall | None = None) -> None:
    """See Watch. kopf gets a thread and a loop of its own: when it ends, it cancels every other task of its loop."""
    listener = _Relay(feed, asyncio.get_running_loop())
    while True:
        kopf_runs = asyncio.create_task(run_in_thread("kopf", lambda: _watch_on(listener, namespaces, on_call)))
        try:
            await until_deaf(feed, kopf_runs)
        finally:
            kopf_runs.cancel()
            await asyncio.gather(kopf_runs, return_exceptions=True)


async def until_deaf(
    feed: Feed,
    kopf_runs: asyncio.Task[None],
    *,
    look_s: float = 5.0,
    limit_s: float = DEAF_S,
    begin_s: float = _BEGIN_S,
) -> None:
    """Return when kopf ended, when a watch of it was silent for longer than the server ever is, or has more to watch.

    kopf looks once which kinds are defined, as it begins.
    """
    deaf_s = unwatched_s = 0.0
    while deaf_s < limit_s:
        await asyncio.wait({kopf_runs}, timeout=look_s)
        if kopf_runs.done():
            _LOG.warning("kopf ended and is started again: %s", kopf_runs.exception())
            return
        unwatched_s = unwatched_s + look_s if feed.has_unwatched else 0.0
        if unwatched_s >= begin_s:
            _LOG.info("a kind was defined after kopf had begun; kopf is started again, and watches it")
            return
        feed.look_for_definitions()
        age_s = max(feed.ages_s().values(), default=0.0)
        deaf_s = min(deaf_s + look_s, age_s)
    _LOG.warning("a watch was silent for %.0f s; kopf is started again", deaf_s)


class _Relay:
    """A Listener in one thread that has another one hear of everything, in order."""

    def __init__(self, feed: Listener, loop: asyncio.AbstractEventLoop) -> None:
        """Take who listens, and in which loop."""
        self._feed = feed
        self._loop = loop

    def hear(self, scope: Scope) -> None:
        """See Listener."""
        self._loop.call_soon_threadsafe(self._feed.hear, scope)

    def start(self, scope: Scope) -> None:
        """See Listener."""
        self._loop.call_soon_threadsafe(self._feed.start, scope)

    def see(self, kind: Kind, obj: Resource, *, is_gone: bool) -> None:
        """See Listener."""
        self._loop.call_soon_threadsafe(partial(self._feed.see, kind, obj, is_gone=is_gone))


async def _watch_on(feed: Listener, namespaces: tuple[str, ...], on_call: OnCall | None) -> None:
    """Watch without an end. A kopf that gives up (an error inside a stream does that) is started again."""
    while True:
        sessions = WatchSessions(feed, on_call)
        try:
            await kopf.operator(
                registry=build_registry(feed, sessions),
                settings=build_settings(),
                standalone=True,
                clusterwide=not namespaces,
                namespaces=namespaces,
            )
        except Exception as error:  # noqa: BLE001  # what is known stays known, and we go on
            _LOG.warning("the watch ended and is started again: %s", error)
        finally:
            await sessions.close()  # a kopf that gave up did not
        await asyncio.sleep(_RESTART_S)


def build_registry(feed: Listener, sessions: WatchSessions) -> kopf.OperatorRegistry:
    """Return the handlers: of the resource itself, and of everything that we made for it."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**kwargs: Any) -> kopf.AiohttpSession | None:
        info = kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)
        return sessions.open(info) if info else None

    for kind in SELECTORS:
        _register(registry, kind, feed)
    return registry


def _register(registry: kopf.OperatorRegistry, kind: Kind, feed: Listener) -> None:
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
    settings.watching.reconnect_backoff = 1.0  # before a new list: an API server that is ill gets no storm of them
    settings.watching.inactivity_timeout = 70
    settings.watching.chunk_size = 1  # only the version of a list is of use: the feed lists itself
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
