"""A local copy of the objects of one kind, kept true by list and watch. Owns the copy; knows nothing of its use."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from dormouse_kube.api import Kind, KubeApi, Resource
from dormouse_kube.errors import Gone, KubeError, NotFound, Unavailable

_LOG = logging.getLogger(__name__)

_SHORT_S = 1.0  # a watch that told nothing and ended sooner counts as a failure, as in client-go


class ObjectKey(NamedTuple):
    """Where an object is. The namespace of cluster-scoped objects is empty."""

    namespace: str
    name: str


def key_of(obj: Resource) -> ObjectKey:
    """Return the object's key."""
    metadata = obj["metadata"]
    return ObjectKey(metadata.get("namespace", ""), metadata["name"])


OnChange = Callable[[ObjectKey, Resource | None], None]  # None = gone


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between failed tries: doubled from `first_s` to `max_s`, each shortened at random by up to half."""

    first_s: float = 0.2
    max_s: float = 10.0

    def delay_s(self, failures: int, rng: random.Random) -> float:
        """Return the pause after so many failures in a row (≥ 1)."""
        full = min(self.max_s, self.first_s * 2.0 ** min(failures - 1, 30))
        return float(full * rng.uniform(0.5, 1.0))


class Reflector:
    """Lists, then watches, in each namespace; calls `on_change` in the order of the changes.

    `on_change` must not raise. After a break everything is listed again: changed objects are told as changes,
    vanished ones as None, so that nothing is missed. `synced` is set once every namespace was listed.
    """

    def __init__(  # noqa: PLR0913  # the last four exist for tests
        self,
        api: KubeApi,
        kind: Kind,
        namespaces: Sequence[str] = (),
        *,
        on_change: OnChange,
        label_selector: str = "",
        is_optional: bool = False,
        backoff: Backoff | None = None,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the namespaces to look at; none means all. Of a kind that is optional and undefined there is nothing."""
        self._api = api
        self._kind = kind
        self._namespaces: tuple[str | None, ...] = tuple(dict.fromkeys(namespaces)) or (None,)
        self._on_change = on_change
        self._label_selector = label_selector
        self._is_optional = is_optional
        self._backoff = backoff or Backoff()
        self._sleep = sleep
        self._rng = rng or random.Random()  # noqa: S311  # jitter needs no cryptography
        self._clock = clock
        self._objects: dict[ObjectKey, Resource] = {}
        self._unlisted = set(self._namespaces)
        self._failures: dict[str | None, int] = dict.fromkeys(self._namespaces, 0)  # in a row
        self.synced = asyncio.Event()

    def __repr__(self) -> str:
        """Show the kind, where it looks and how much it holds."""
        where = ", ".join(namespace or "all namespaces" for namespace in self._namespaces)
        return f"Reflector({self._kind.plural} in {where}: {len(self._objects)}, synced={self.synced.is_set()})"

    @property
    def objects(self) -> Mapping[ObjectKey, Resource]:
        """Return a live, read-only view of the copy."""
        return MappingProxyType(self._objects)

    def get(self, namespace: str, name: str) -> Resource | None:
        """Return the copy of one object, None if there is none."""
        return self._objects.get(ObjectKey(namespace, name))

    async def run(self) -> None:
        """Keep the copy true until cancelled. Outages are waited out, whatever their length."""
        async with asyncio.TaskGroup() as tasks:
            for namespace in self._namespaces:
                tasks.create_task(self._follow(namespace), name=f"reflect {self._kind.plural} {namespace or ''}")

    async def _follow(self, namespace: str | None) -> None:
        """List and watch one namespace, again after every break."""
        while True:
            try:
                version = await self._relist(namespace)
                while True:
                    version = await self._watch(namespace, version)
            except KubeError as error:
                self._failures[namespace] += 1
                delay_s = self._pause_s(error, self._failures[namespace])
                is_undefined = self._is_optional and isinstance(error, NotFound)
                if is_undefined:
                    self._take_list(namespace, ())
                is_normal = isinstance(error, Gone) or (is_undefined and self._failures[namespace] > 1)
                level = logging.DEBUG if is_normal else logging.WARNING  # Gone is normal after silence
                _LOG.log(level, "watching %s broke, again in %.1f s: %s", self._kind.plural, delay_s, error)
                await self._sleep(delay_s)

    def _pause_s(self, error: KubeError, failures: int) -> float:
        """Return the pause before the next try, at least what the server asked for."""
        asked = error.retry_after_s if isinstance(error, Unavailable) else None
        return max(asked or 0.0, self._backoff.delay_s(failures, self._rng))

    async def _relist(self, namespace: str | None) -> str:
        """Make the copy equal to a fresh list; return the list's version."""
        listed = await self._api.list(self._kind, namespace, label_selector=self._label_selector)
        self._take_list(namespace, listed.items)
        return listed.resource_version

    def _take_list(self, namespace: str | None, objects: Sequence[Resource]) -> None:
        fresh = {key_of(obj): obj for obj in objects}
        known = [key for key in self._objects if namespace is None or key.namespace == namespace]
        for key in known:
            if key not in fresh:
                self._remove(key)
        for key, obj in fresh.items():
            self._store(key, obj)
        self._unlisted.discard(namespace)
        if not self._unlisted:
            self.synced.set()

    async def _watch(self, namespace: str | None, version: str) -> str:
        """Follow changes until the server ends the watch; return the version to continue from, at once or soon."""
        watch = self._api.watch(self._kind, namespace, resource_version=version, label_selector=self._label_selector)
        started_s, has_worked = self._clock(), False
        async for event in watch:
            if event.type != "BOOKMARK" or self._clock() - started_s >= _SHORT_S:
                has_worked = True
                self._failures[namespace] = 0  # a later break is a new one
            version = event.object["metadata"]["resourceVersion"]
            if event.type == "DELETED":
                self._remove(key_of(event.object))
            elif event.type != "BOOKMARK":
                self._store(key_of(event.object), event.object)
        if has_worked or self._clock() - started_s >= _SHORT_S:
            self._failures[namespace] = 0
        else:
            await self._wait_for_watch(namespace)
        return version

    async def _wait_for_watch(self, namespace: str | None) -> None:
        """Pause before a watch that was ended at once is opened again, longer each time."""
        self._failures[namespace] += 1
        delay_s = self._backoff.delay_s(self._failures[namespace], self._rng)
        _LOG.debug("the server ended the watch of %s at once, again in %.1f s", self._kind.plural, delay_s)
        await self._sleep(delay_s)

    def _store(self, key: ObjectKey, obj: Resource) -> None:
        """Keep the object and tell of it, unless it is the one that is kept already."""
        known = self._objects.get(key)
        if known and known["metadata"]["resourceVersion"] == obj["metadata"]["resourceVersion"]:
            return
        self._objects[key] = obj
        self._on_change(key, obj)

    def _remove(self, key: ObjectKey) -> None:
        """Forget the object and tell of it."""
        if self._objects.pop(key, None) is not None:
            self._on_change(key, None)
