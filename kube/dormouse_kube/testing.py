"""FakeKube: the Kubernetes API in memory, as far as KubeApi shows it. It records calls and fails on command.

It behaves as the server does where callers can see it: versions, UIDs, generations, the status subresource,
ownership of fields by manager, deletion in two steps, watches that can end, break or be too old.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dormouse_kube.api import Kind, KubeApi, Resource, ResourceList, WatchEvent
from dormouse_kube.errors import Conflict, KubeError, NotFound
from dormouse_kube.merge import merge_patch
from dormouse_kube.testing_store import (
    Key,
    Store,
    check_immutable,
    check_version,
    event_of,
    key_of,
    scale_of,
    selector,
    with_status_of,
)


@dataclass(frozen=True, slots=True)
class Call:
    """One call as it was made."""

    verb: str
    plural: str
    namespace: str
    name: str = ""
    subresource: str = ""


@dataclass(slots=True)
class _Failure:
    """An order to fail."""

    verb: str
    plural: str
    error: KubeError
    times: int
    is_done: bool = False  # and only its answer is lost


@dataclass(slots=True)
class FakeKube:
    """KubeApi in memory. What it returns are copies; what it is given is copied."""

    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    calls: list[Call] = field(default_factory=list)
    _store: Store = field(init=False)
    _failures: list[_Failure] = field(default_factory=list)
    _unknown: dict[str, frozenset[str]] = field(default_factory=dict)  # by plural: fields of the status
    _breaks: int = 0  # raised by `end_watches`
    _break_error: KubeError | None = None
    _wake: list[asyncio.Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._store = Store(clock=self._time, on_change=self._notify)

    def __repr__(self) -> str:
        """Show what it holds."""
        return f"FakeKube({self._store!r}, {len(self.calls)} calls)"

    @property
    def version(self) -> int:
        """Return the version of the last change."""
        return self._store.version

    # --- what a test orders ---

    def fail(self, verb: str, kind: Kind, error: KubeError, *, times: int = 1) -> None:
        """Make the next calls of this verb on this kind raise; the verbs are the methods' names."""
        self._failures.append(_Failure(verb, kind.plural, error, times))

    def lose_answer(self, kind: Kind, error: KubeError) -> None:
        """Make the next write of a status of this kind raise though it is done, as when a connection breaks."""
        self._failures.append(_Failure("patch_status", kind.plural, error, 1, is_done=True))

    def know_no(self, kind: Kind, *fields: str) -> None:
        """Have a schema that lacks these fields of the status: what is written of them is dropped, without a word."""
        self._unknown[kind.plural] = frozenset(fields)

    def end_watches(self, error: KubeError | None = None) -> None:
        """End every running watch, as the server does now and then, or break it with an error."""
        self._breaks += 1
        self._break_error = error
        self._notify()

    def compact(self) -> None:
        """Forget the history: watches from before now are Gone."""
        self._store.compact()

    def put(self, kind: Kind, obj: Resource) -> Resource:
        """Store the object whole, status included, as somebody else than the caller under test."""
        return self._store.put(kind, key_of(kind, obj), obj)

    def edit(self, kind: Kind, namespace: str, name: str, change: Callable[[dict[str, Any]], object]) -> Resource:
        """Change the stored object in place, as somebody else than the caller under test. Raises NotFound."""
        key = (kind.plural, namespace, name)
        obj = self._stored(key)
        change(obj)
        return self._store.put(kind, key, obj)

    def peek(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the stored object without recording a call."""
        return self._store.get((kind.plural, namespace, name))

    def everything(self, kind: Kind) -> list[dict[str, Any]]:
        """Return all objects of a kind, by name, without recording a call."""
        return self._store.of_kind(kind)

    def told_after(self, version: int, kind: Kind) -> list[WatchEvent]:
        """Return what a watch of the whole kind tells after a version, without recording a call. Raises Gone."""
        events = (event_of(change, kind, None, lambda _: True) for change in self._store.changes_after(version))
        return [event for event in events if event]

    def finish_deletion(self, kind: Kind, namespace: str, name: str) -> None:
        """Remove the object now, as the kubelet does when a pod's containers have ended."""
        self._store.drop((kind.plural, namespace, name))

    def collect_garbage(self) -> None:
        """Remove every object whose owners are all gone, until none is left."""
        while orphans := self._store.orphans():
            for key in orphans:
                self._store.drop(key)

    def mutations(self) -> list[Call]:
        """Return the calls that wrote something."""
        return [call for call in self.calls if call.verb not in {"get", "list", "watch"}]

    # --- KubeApi ---

    async def get(self, kind: Kind, namespace: str, name: str) -> Resource | None:
        """See KubeApi."""
        await self._record("get", kind, namespace, name)
        return self.peek(kind, namespace, name)

    async def list(self, kind: Kind, namespace: str | None, *, label_selector: str = "") -> ResourceList:
        """See KubeApi."""
        await self._record("list", kind, namespace or "")
        selected = selector(label_selector)
        items = tuple(
            obj
            for obj in self.everything(kind)
            if namespace in {None, obj["metadata"].get("namespace")} and selected(obj)
        )
        return ResourceList(items, str(self.version))

    async def pages(
        self, kind: Kind, namespace: str | None, *, label_selector: str = ""
    ) -> AsyncIterator[ResourceList]:
        """See KubeApi. Of two objects each."""
        listed = await self.list(kind, namespace, label_selector=label_selector)
        for begin in range(0, max(1, len(listed.items)), 2):
            yield ResourceList(listed.items[begin : begin + 2], listed.resource_version)

    async def watch(
        self, kind: Kind, namespace: str | None, *, resource_version: str, label_selector: str = ""
    ) -> AsyncIterator[WatchEvent]:
        """See KubeApi. A BOOKMARK comes at the end of every watch that ends well."""
        await self._record("watch", kind, namespace or "")
        selected = selector(label_selector)
        version, breaks = int(resource_version), self._breaks
        wake = asyncio.Event()
        self._wake.append(wake)
        try:
            while True:
                for change in self._store.changes_after(version):
                    version = change.version
                    event = event_of(change, kind, namespace, selected)
                    if event:
                        yield event
                if breaks != self._breaks:
                    break
                wake.clear()
                await wake.wait()
        finally:
            self._wake.remove(wake)
        if self._break_error:
            raise self._break_error
        yield WatchEvent("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})

    async def create(self, kind: Kind, obj: Resource) -> Resource:
        """See KubeApi."""
        key = key_of(kind, obj)
        await self._record("create", kind, key[1], key[2])
        if self._store.get(key) is not None:
            raise Conflict(f'{kind.plural} "{key[2]}" already exists', status=409, reason="AlreadyExists")
        return self._store.put(kind, key, with_status_of(kind, obj, None))

    async def apply(self, kind: Kind, obj: Resource, *, field_manager: str, subresource: str = "") -> Resource:
        """See KubeApi."""
        key = key_of(kind, obj)
        await self._record("apply", kind, key[1], key[2], subresource)
        check_version(key, obj, self._store.get(key))
        check_immutable(obj, self._store.get(key))
        if subresource:
            self._stored(key)
        return self._store.apply(kind, obj, manager=field_manager, subresource=subresource)

    async def replace(self, kind: Kind, obj: Resource) -> Resource:
        """See KubeApi."""
        key = key_of(kind, obj)
        await self._record("replace", kind, key[1], key[2])
        stored = self._stored(key)
        check_version(key, obj, stored)
        return self._store.put(kind, key, with_status_of(kind, obj, stored))

    async def patch_status(
        self, kind: Kind, namespace: str, name: str, status: Mapping[str, Any], *, resource_version: str = ""
    ) -> Resource:
        """See KubeApi."""
        await self._record("patch_status", kind, namespace, name, "status")
        key = (kind.plural, namespace, name)
        fresh = self._stored(key)
        check_version(key, {"metadata": {"resourceVersion": resource_version}}, fresh)
        after = merge_patch(fresh.get("status") or {}, status)
        fresh["status"] = {name: value for name, value in after.items() if name not in self._unknown.get(key[0], ())}
        written = self._store.put(kind, key, fresh)
        self._fail_if_ordered("patch_status", kind, is_done=True)
        return written

    async def patch_scale(
        self, kind: Kind, namespace: str, name: str, *, replicas: int, field_manager: str, resource_version: str = ""
    ) -> Resource:
        """See KubeApi. Who writes which fields is known of applies only."""
        assert field_manager, "the server would name the program instead"
        await self._record("patch_scale", kind, namespace, name, "scale")
        key = (kind.plural, namespace, name)
        fresh = self._stored(key)
        check_version(key, {"metadata": {"resourceVersion": resource_version}}, fresh)
        fresh["spec"]["replicas"] = replicas
        return scale_of(self._store.put(kind, key, fresh))

    async def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str | None = None, grace_period_s: int | None = None
    ) -> Resource | None:
        """See KubeApi."""
        await self._record("delete", kind, namespace, name)
        key = (kind.plural, namespace, name)
        stored = self._store.get(key)
        if stored is not None and uid not in {None, stored["metadata"]["uid"]}:
            raise Conflict(f'{kind.plural} "{name}" has another UID than {uid}', status=409, reason="Conflict")
        self._store.delete(kind, key, grace_period_s=grace_period_s)
        return self._store.get(key)

    # --- inside ---

    async def _record(self, verb: str, kind: Kind, namespace: str, name: str = "", subresource: str = "") -> None:
        """Remember the call, give way to others as a network call would, fail if ordered."""
        self.calls.append(Call(verb, kind.plural, namespace, name, subresource))
        await asyncio.sleep(0)
        self._fail_if_ordered(verb, kind, is_done=False)

    def _fail_if_ordered(self, verb: str, kind: Kind, *, is_done: bool) -> None:
        for failure in self._failures:
            is_meant = (failure.verb, failure.plural, failure.is_done) == (verb, kind.plural, is_done)
            if is_meant and failure.times > 0:
                failure.times -= 1
                raise failure.error

    def _stored(self, key: Key) -> dict[str, Any]:
        """Return the object. Raises NotFound."""
        stored = self._store.get(key)
        if stored is None:
            raise NotFound(f'{key[0]} "{key[2]}" not found', status=404, reason="NotFound")
        return stored

    def _time(self) -> datetime:
        """Ask the clock of this moment: a test may put in another one."""
        return self.clock()

    def _notify(self) -> None:
        for wake in self._wake:
            wake.set()


def _conforms(fake: FakeKube) -> KubeApi:
    """Let the type checker compare the fake with the protocol."""
    return fake
