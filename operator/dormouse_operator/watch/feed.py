"""Brings what a watch tells into the cache and marks the deployments that changed; checks the cache after every gap.

A watch that had to start anew lists what is there, and says nothing of what vanished in between: then everything of
that kind is listed once more, after the watch runs again, and what is not in that list is forgotten.

A kind that the cluster can do without may be undefined: nobody can watch it then. The feed asks for it now and then,
and has the watches begin anew once it is there.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from dormouse_kube.api import GPU_POOLS, INFERENCE_ADAPTERS, Kind, KubeApi, Resource
from dormouse_kube.errors import KubeError, NotFound, Unavailable
from dormouse_kube.reflector import Backoff
from dormouse_operator.model import AnyKey
from dormouse_operator.watch.cache import SELECTORS, Cache

_LOG = logging.getLogger(__name__)

Scope = tuple[Kind, str | None]  # a kind in one namespace, or in all

# Kinds whose definition may be missing, and what is said then. What they are for is switched off.
OPTIONAL: dict[Kind, str] = {
    GPU_POOLS: "GpuPool is not defined in this cluster: GPU pools are switched off until crds/gpupools.yaml is applied",
    INFERENCE_ADAPTERS: (
        "InferenceAdapter is not defined in this cluster: adapters are those of spec.adapters alone until "
        "crds/inferenceadapters.yaml is applied"
    ),
}


class Listener(Protocol):
    """Who hears of what watches tell."""

    def hear(self, scope: Scope) -> None:
        """Note that a watch is alive: an event, a bookmark, a new connection."""
        ...

    def start(self, scope: Scope) -> None:
        """Note that a watch has listed and now follows from there."""
        ...

    def see(self, kind: Kind, obj: Resource, *, is_gone: bool) -> None:
        """Take in one event."""
        ...


class Feed:
    """What is heard, from whom, and since when not. One watch per kind and namespace feeds it."""

    def __init__(
        self,
        kube: KubeApi,
        cache: Cache,
        *,
        namespaces: tuple[str, ...],
        mark: Callable[[AnyKey], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:
        """Take what is listed, what is filled, and who hears of changes; no namespace means all."""
        self._kube = kube
        self._cache = cache
        self._mark = mark
        self._clock = clock
        self._sleep = sleep
        self._scopes: list[Scope] = [(kind, namespace) for kind in SELECTORS for namespace in namespaces or (None,)]
        self._unlisted = set(self._scopes)
        # watched anew and not yet checked, in the order of the starts; of what may be undefined no watch tells us
        self._doubtful: dict[Scope, None] = {scope: None for scope in self._scopes if scope[0] in OPTIONAL}
        self._undefined: set[Scope] = set()
        self._unwatched: set[Scope] = set()  # defined, and no watch of it began
        self._heard: dict[Scope, float] = {}
        self._has_doubts = asyncio.Event()
        self._has_doubts.set()
        self.filled = asyncio.Event()

    def __repr__(self) -> str:
        """Show what is missing."""
        return f"Feed({self._cache!r}, {len(self._unlisted)} not listed, {len(self._doubtful)} in doubt)"

    def ages_s(self) -> dict[str, float]:
        """Return, by kind, how long ago its most silent watch was last heard."""
        now, ages = self._clock(), dict[str, float]()
        for (kind, _), heard in self._heard.items():
            ages[kind.plural] = max(ages.get(kind.plural, 0.0), now - heard)
        return ages

    def hear(self, scope: Scope) -> None:
        """Note that a watch is alive: an event, a bookmark, a new connection."""
        self._heard[scope] = self._clock()

    def start(self, scope: Scope) -> None:
        """Note that a watch has listed and now follows from there."""
        self.hear(scope)
        self._undefined.discard(scope)
        self._unwatched.discard(scope)
        self._doubt(scope)

    @property
    def has_unwatched(self) -> bool:
        """Return whether a kind is defined that no watch follows, as it was not yet when the watches began."""
        return bool(self._unwatched)

    def look_for_definitions(self) -> None:
        """Ask once more for what was not defined when it was last asked for."""
        for scope in self._undefined:
            self._doubt(scope)

    def see(self, kind: Kind, obj: Resource, *, is_gone: bool) -> None:
        """Take in one event; the deployment is marked if it tells something new."""
        key = self._cache.drop(kind, obj) if is_gone else self._cache.take(kind, obj)
        if key is not None:
            self._mark(key)

    async def run(self) -> None:
        """Check every gap, until cancelled. What fails is tried again for as long as it takes."""
        rng, backoff, failures = random.Random(), Backoff(first_s=0.2, max_s=10.0), 0  # noqa: S311  # only jitter
        while True:
            await self._has_doubts.wait()
            scope = next(iter(self._doubtful))
            try:
                await self._check(scope)
            except KubeError as error:
                failures += 1
                asked_s = error.retry_after_s if isinstance(error, Unavailable) else None
                pause_s = max(asked_s or 0.0, backoff.delay_s(failures, rng))
                _LOG.warning("the list of %s failed, again in %.1f s: %s", scope[0].plural, pause_s, error)
                await self._sleep(pause_s)
            else:
                failures = 0

    async def _check(self, scope: Scope) -> None:
        """List everything of one scope and make the cache equal to it."""
        kind, namespace = scope
        self._doubtful.pop(scope)  # another start while we list is another reason to list
        names: set[tuple[str, str]] = set()
        version = 0
        try:
            async for page in self._kube.pages(kind, namespace, label_selector=SELECTORS[kind]):
                version = int(page.resource_version)
                names.update((obj["metadata"]["namespace"], obj["metadata"]["name"]) for obj in page.items)
                self._mark_all(self._cache.take(kind, obj) for obj in page.items)
                await asyncio.sleep(0)  # other work goes between the pages
        except NotFound:
            if kind not in OPTIONAL:
                self._doubt(scope)
                raise
            self._note_undefined(scope)
        except KubeError:
            self._doubt(scope)
            raise
        else:
            self._mark_all(self._cache.retain(kind, namespace, names, version))
            self._note_defined(scope)
        self._note_listed(scope)

    def _doubt(self, scope: Scope) -> None:
        self._doubtful[scope] = None
        self._has_doubts.set()

    def _note_undefined(self, scope: Scope) -> None:
        """Go on without a kind; nothing of it can be there."""
        kind, _ = scope
        if kind not in {known for known, _ in self._undefined}:
            _LOG.warning(OPTIONAL[kind])
        self._undefined.add(scope)

    def _note_defined(self, scope: Scope) -> None:
        self._undefined.discard(scope)
        if scope not in self._heard:
            self._unwatched.add(scope)

    def _mark_all(self, keys: Iterable[AnyKey | None]) -> None:
        for key in keys:
            if key is not None:
                self._mark(key)

    def _note_listed(self, scope: Scope) -> None:
        if not self._doubtful:
            self._has_doubts.clear()
        self._unlisted.discard(scope)
        if not self._unlisted and not self._cache.is_complete:
            self._cache.is_complete = True
            self.filled.set()
            _LOG.info("everything was listed: %r", self._cache)
