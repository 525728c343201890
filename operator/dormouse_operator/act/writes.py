"""KubeApi for those who act: every write is checked to be allowed right before it is sent, and its answer is kept.

So a process that was stopped and goes on writes nothing, and a pass that follows a write sees it, whatever the watch
has told by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from dormouse_kube.api import Kind, KubeApi, Resource
from dormouse_kube.errors import KubeError, NotFound
from dormouse_operator.watch.cache import SELECTORS, Cache


class Authority(Protocol):
    """The right to act."""

    @property
    def epoch(self) -> int:
        """Return the number that fences commands to workers."""
        ...

    def check(self) -> None:
        """Raise NotLeading if this operator may not act now."""
        ...


class Writer:
    """The writing half of KubeApi. Raises KubeError, which tells of what object, and NotLeading before all else."""

    def __init__(self, kube: KubeApi, cache: Cache, authority: Authority) -> None:
        """Take what is written to, what remembers the answers, and the right to act."""
        self._kube = kube
        self._cache = cache
        self._authority = authority

    async def create(self, kind: Kind, obj: Resource) -> None:
        """See KubeApi."""
        self._authority.check()
        with _named(kind, obj["metadata"]["name"]):
            answer = await self._kube.create(kind, obj)
        self._keep(kind, answer, is_made=True)

    async def apply(self, kind: Kind, obj: Resource, *, field_manager: str, subresource: str = "") -> None:
        """See KubeApi."""
        self._authority.check()
        try:
            with _named(kind, obj["metadata"]["name"]):
                answer = await self._kube.apply(kind, obj, field_manager=field_manager, subresource=subresource)
        except NotFound:
            self._forget(kind, obj["metadata"]["namespace"], obj["metadata"]["name"], obj["metadata"].get("uid", ""))
            raise
        self._keep(kind, answer)

    async def patch_status(
        self, kind: Kind, namespace: str, name: str, status: Mapping[str, Any], *, resource_version: str
    ) -> Resource:
        """See KubeApi. Only of the version that was observed, so that the answer holds nothing unseen."""
        self._authority.check()
        try:
            answer = await self._kube.patch_status(kind, namespace, name, status, resource_version=resource_version)
        except NotFound:
            self._forget(kind, namespace, name)
            raise
        self._keep(kind, answer)
        return answer

    async def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str, grace_period_s: int | None = None
    ) -> None:
        """See KubeApi."""
        self._authority.check()
        with _named(kind, name):
            answer = await self._kube.delete(kind, namespace, name, uid=uid, grace_period_s=grace_period_s)
        if answer is None:
            self._forget(kind, namespace, name, uid)
        else:
            self._keep(kind, answer)

    def _keep(self, kind: Kind, answer: Resource, *, is_made: bool = False) -> None:
        if kind in SELECTORS:
            self._cache.take(kind, answer, is_made=is_made)

    def _forget(self, kind: Kind, namespace: str, name: str, uid: str = "") -> None:
        if kind in SELECTORS:
            self._cache.drop_missing(kind, namespace, name, uid)


@contextmanager
def _named(kind: Kind, name: str) -> Iterator[None]:
    """Have an error say which object was written: the server's words need not."""
    try:
        yield
    except KubeError as error:
        error.about = f"{kind.kind} {name}"
        raise
