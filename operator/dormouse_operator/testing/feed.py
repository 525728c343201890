"""For tests: what stands between a FakeKube and a cache. Stepped by hand, or as a watch in a running App."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from dormouse_kube.api import Kind
from dormouse_kube.errors import KubeError
from dormouse_kube.testing import FakeKube
from dormouse_kube.testing_store import selector
from dormouse_operator.model import AnyKey
from dormouse_operator.watch.cache import SELECTORS, Cache
from dormouse_operator.watch.feed import Feed
from dormouse_operator.watch.sessions import OnCall


@dataclass(slots=True)
class CachePump:
    """Brings what changed in a FakeKube into a cache when told to, as watches would. Until then the cache is behind."""

    kube: FakeKube
    cache: Cache
    version: int = 0

    def pump(self) -> list[AnyKey]:
        """Take in what happened since the last time; return the deployments that it concerns."""
        if not self.cache.is_complete:
            self._fill()
        changed = [key for kind in SELECTORS for key in self._events_of(kind) if key]
        self.version = self.kube.version
        return changed

    def _fill(self) -> None:
        self.version = self.kube.version
        for kind, labels in SELECTORS.items():
            for obj in filter(selector(labels), self.kube.everything(kind)):
                self.cache.take(kind, obj)
        self.cache.is_complete = True

    def _events_of(self, kind: Kind) -> list[AnyKey | None]:
        selected = selector(SELECTORS[kind])
        return [
            self.cache.drop(kind, event.object) if event.type == "DELETED" else self.cache.take(kind, event.object)
            for event in self.kube.told_after(self.version, kind)
            if selected(event.object)
        ]


@dataclass(slots=True)
class FakeWatch:
    """A Watch over a FakeKube: lists, follows, and starts anew when its stream breaks."""

    kube: FakeKube

    async def __call__(self, feed: Feed, *, namespaces: tuple[str, ...], on_call: OnCall | None = None) -> None:
        """See Watch."""
        del on_call  # nobody counts
        async with asyncio.TaskGroup() as tasks:
            for kind in SELECTORS:
                for namespace in namespaces or (None,):
                    tasks.create_task(self._follow(feed, kind, namespace))

    async def _follow(self, feed: Feed, kind: Kind, namespace: str | None) -> None:
        while True:
            version = str(self.kube.version)
            feed.start((kind, namespace))
            try:
                while True:
                    version = await self._stream(feed, kind, namespace, version)
            except KubeError:
                await asyncio.sleep(0)

    async def _stream(self, feed: Feed, kind: Kind, namespace: str | None, version: str) -> str:
        watch = self.kube.watch(kind, namespace, resource_version=version, label_selector=SELECTORS[kind])
        async for event in watch:
            version = event.object["metadata"]["resourceVersion"]
            feed.hear((kind, namespace))
            if event.type != "BOOKMARK":
                feed.see(kind, event.object, is_gone=event.type == "DELETED")
        return version
