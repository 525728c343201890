"""FakeKube: the Kubernetes API in memory, as far as KubeApi shows it. It records calls and fails on command.

It behaves as the server does where callers can see it: versions, UIDs, generations, the status subresource,
ownership of fields by manager, deletion in two steps, watches that can end, break or be too old.
"""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from dormouse_kube.api import PODS, Kind, KubeApi, Resource, ResourceList, WatchEvent
from dormouse_kube.errors import Conflict, Gone, KubeError, NotFound
from dormouse_kube.merge import merge, merge_patch, remove_given_up

_WITH_STATUS = {"pods", "services", "inferencedeployments"}


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


@dataclass(frozen=True, slots=True)
class _Change:
    """One change in the history: what was, what is (None = nothing)."""

    version: int
    plural: str
    before: Resource | None
    after: Resource | None


_Key = tuple[str, str, str]  # plural, namespace, name


@dataclass(slots=True)
class FakeKube:
    """KubeApi in memory. What it returns are copies; what it is given is copied."""

    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    graceful_pods: bool = True  # a pod that has a node ends only when `finish_deletion` says so
    calls: list[Call] = field(default_factory=list)
    _objects: dict[_Key, dict[str, Any]] = field(default_factory=dict)
    _owned: dict[tuple[_Key, str, str], dict[str, Any]] = field(default_factory=dict)  # last applied, per manager
    _history: list[_Change] = field(default_factory=list)
    _failures: list[_Failure] = field(default_factory=list)
    _version: int = 1000
    _oldest: int = 1000  # watches from before this version are Gone
    _breaks: int = 0  # raised by `end_watches`
    _break_error: KubeError | None = None
    _wake: list[asyncio.Event] = field(default_factory=list)

    def __repr__(self) -> str:
        """Show what it holds."""
        return f"FakeKube({len(self._objects)} objects at version {self._version}, {len(self.calls)} calls)"

    @property
    def version(self) -> int:
        """Return the version of the last change."""
        return self._version

    # --- what a test orders ---

    def fail(self, verb: str, kind: Kind, error: KubeError, *, times: int = 1) -> None:
        """Make the next calls of this verb on this kind raise; the verbs are the methods' names."""
        self._failures.append(_Failure(verb, kind.plural, error, times))

    def end_watches(self, error: KubeError | None = None) -> None:
        """End every running watch, as the server does now and then, or break it with an error."""
        self._breaks += 1
        self._break_error = error
        self._notify()

    def compact(self) -> None:
        """Forget the history: watches from before now are Gone."""
        self._oldest = self._version
        self._history.clear()

    def put(self, kind: Kind, obj: Resource) -> Resource:
        """Store the object whole, status included, as somebody else than the caller under test."""
        key = self._key(kind, obj)
        return self._store(kind, key, copy.deepcopy(dict(obj)))

    def edit(self, kind: Kind, namespace: str, name: str, change: Callable[[dict[str, Any]], object]) -> Resource:
        """Change the stored object in place, as somebody else than the caller under test."""
        key = (kind.plural, namespace, name)
        obj = copy.deepcopy(self._objects[key])
        change(obj)
        return self._store(kind, key, obj)

    def peek(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the stored object without recording a call."""
        return copy.deepcopy(self._objects.get((kind.plural, namespace, name)))

    def everything(self, kind: Kind) -> list[dict[str, Any]]:
        """Return all objects of a kind, by name, without recording a call."""
        return [copy.deepcopy(obj) for key, obj in sorted(self._objects.items()) if key[0] == kind.plural]

    def finish_deletion(self, kind: Kind, namespace: str, name: str) -> None:
        """Remove the object now, as the kubelet does when a pod's containers have ended."""
        self._drop((kind.plural, namespace, name))

    def collect_garbage(self) -> None:
        """Remove every object whose owners are all gone, until none is left."""
        while orphans := self._orphans():
            for key in orphans:
                self._drop(key)

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
        selected = _selector(label_selector)
        items = tuple(
            obj
            for obj in self.everything(kind)
            if namespace in {None, obj["metadata"].get("namespace")} and selected(obj)
        )
        return ResourceList(items, str(self._version))

    async def watch(
        self, kind: Kind, namespace: str | None, *, resource_version: str, label_selector: str = ""
    ) -> AsyncIterator[WatchEvent]:
        """See KubeApi. A BOOKMARK comes at the end of every watch that ends well."""
        await self._record("watch", kind, namespace or "")
        selected = _selector(label_selector)
        version, breaks = int(resource_version), self._breaks
        wake = asyncio.Event()
        self._wake.append(wake)
        try:
            while True:
                if version < self._oldest:
                    raise Gone(f"too old resource version: {version} ({self._oldest})", status=410, reason="Expired")
                for change in [change for change in self._history if change.version > version]:
                    version = change.version
                    event = _event_of(change, kind, namespace, selected)
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
        key = self._key(kind, obj)
        await self._record("create", kind, key[1], key[2])
        if key in self._objects:
            raise Conflict(f'{kind.plural} "{key[2]}" already exists', status=409, reason="AlreadyExists")
        stored = copy.deepcopy(dict(obj))
        if kind.plural in _WITH_STATUS:
            stored.pop("status", None)
        return self._store(kind, key, stored)

    async def apply(self, kind: Kind, obj: Resource, *, field_manager: str, subresource: str = "") -> Resource:
        """See KubeApi."""
        key = self._key(kind, obj)
        await self._record("apply", kind, key[1], key[2], subresource)
        stored = self._objects.get(key)
        self._check_version(key, obj, stored)
        if subresource and stored is None:
            raise NotFound(f'{kind.plural} "{key[2]}" not found', status=404, reason="NotFound")
        wanted = _writable(kind, obj, subresource)
        slot = (key, field_manager, subresource)
        pruned = remove_given_up(copy.deepcopy(stored or {}), self._owned.get(slot, {}), wanted)
        merged = merge(pruned, wanted)
        self._owned[slot] = copy.deepcopy(wanted)
        return self._store(kind, key, merged)

    async def replace(self, kind: Kind, obj: Resource) -> Resource:
        """See KubeApi."""
        key = self._key(kind, obj)
        await self._record("replace", kind, key[1], key[2])
        stored = self._objects.get(key)
        if stored is None:
            raise NotFound(f'{kind.plural} "{key[2]}" not found', status=404, reason="NotFound")
        self._check_version(key, obj, stored)
        fresh = copy.deepcopy(dict(obj))
        if kind.plural in _WITH_STATUS:
            fresh["status"] = stored.get("status", {})
        return self._store(kind, key, fresh)

    async def patch_status(self, kind: Kind, namespace: str, name: str, status: Mapping[str, Any]) -> Resource:
        """See KubeApi."""
        await self._record("patch_status", kind, namespace, name, "status")
        key = (kind.plural, namespace, name)
        stored = self._objects.get(key)
        if stored is None:
            raise NotFound(f'{kind.plural} "{name}" not found', status=404, reason="NotFound")
        fresh = copy.deepcopy(stored)
        fresh["status"] = merge_patch(fresh.get("status") or {}, status)
        return self._store(kind, key, fresh)

    async def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str | None = None, grace_period_s: int | None = None
    ) -> None:
        """See KubeApi."""
        await self._record("delete", kind, namespace, name)
        key = (kind.plural, namespace, name)
        stored = self._objects.get(key)
        if stored is None:
            return
        if uid not in {None, stored["metadata"]["uid"]}:
            raise Conflict(f'{kind.plural} "{name}" has another UID than {uid}', status=409, reason="Conflict")
        if not self._is_held(kind, stored, grace_period_s):
            self._drop(key)
        elif "deletionTimestamp" not in stored["metadata"]:
            fresh = copy.deepcopy(stored)
            fresh["metadata"]["deletionTimestamp"] = self._now()
            self._store(kind, key, fresh)

    # --- inside ---

    def _is_held(self, kind: Kind, obj: Resource, grace_period_s: int | None) -> bool:
        """Tell whether a deletion only marks the object."""
        runs = kind is PODS and self.graceful_pods and bool(obj.get("spec", {}).get("nodeName"))
        return bool(obj["metadata"].get("finalizers")) or (runs and grace_period_s != 0)

    async def _record(self, verb: str, kind: Kind, namespace: str, name: str = "", subresource: str = "") -> None:
        """Remember the call, give way to others as a network call would, fail if ordered."""
        self.calls.append(Call(verb, kind.plural, namespace, name, subresource))
        await asyncio.sleep(0)
        for failure in self._failures:
            if (failure.verb, failure.plural) == (verb, kind.plural) and failure.times > 0:
                failure.times -= 1
                raise failure.error

    @staticmethod
    def _key(kind: Kind, obj: Resource) -> _Key:
        metadata = obj["metadata"]
        return (kind.plural, metadata.get("namespace", "") if kind.namespaced else "", metadata["name"])

    @staticmethod
    def _check_version(key: _Key, obj: Resource, stored: Resource | None) -> None:
        """Raise Conflict where the caller means another version or another object than the stored one."""
        version = obj["metadata"].get("resourceVersion")
        uid = obj["metadata"].get("uid")
        is_other = stored is not None and uid not in {None, stored["metadata"]["uid"]}
        if is_other or (version and (stored is None or stored["metadata"]["resourceVersion"] != version)):
            raise Conflict(f'{key[0]} "{key[2]}": the object has been modified', status=409, reason="Conflict")

    def _now(self) -> str:
        return self.clock().strftime("%Y-%m-%dT%H:%M:%SZ")

    def _store(self, kind: Kind, key: _Key, fresh: dict[str, Any]) -> Resource:
        """Store the object, with metadata as the server keeps it; the same content changes nothing."""
        stored = self._objects.get(key)
        fresh = {"apiVersion": kind.api_version, "kind": kind.kind, **fresh}
        old: dict[str, Any] = (
            stored["metadata"] if stored else {"uid": str(uuid.uuid4()), "creationTimestamp": self._now()}
        )
        kept = {
            name: old[name] for name in ("uid", "creationTimestamp", "resourceVersion", "generation") if name in old
        }
        fresh["metadata"] = {**fresh["metadata"], **kept}
        if kind.plural == "inferencedeployments":
            grown = stored is not None and stored.get("spec") != fresh.get("spec")
            fresh["metadata"]["generation"] = old.get("generation", 1) + int(grown)
        if fresh == stored:
            return copy.deepcopy(fresh)
        if fresh["metadata"].get("deletionTimestamp") and stored and not self._is_held(kind, fresh, None):
            self._drop(key)
            return fresh
        self._version += 1
        fresh["metadata"]["resourceVersion"] = str(self._version)
        self._objects[key] = fresh
        self._history.append(_Change(self._version, kind.plural, stored, fresh))
        self._notify()
        return copy.deepcopy(fresh)

    def _drop(self, key: _Key) -> None:
        """Remove the object, if it is there, and what managers owned of it."""
        stored = self._objects.pop(key, None)
        if stored is None:
            return
        self._owned = {slot: owned for slot, owned in self._owned.items() if slot[0] != key}
        self._version += 1
        self._history.append(_Change(self._version, key[0], stored, None))
        self._notify()

    def _orphans(self) -> Sequence[_Key]:
        uids = {obj["metadata"]["uid"] for obj in self._objects.values()}
        owners = {key: obj["metadata"].get("ownerReferences", []) for key, obj in self._objects.items()}
        return [key for key, refs in owners.items() if refs and not any(ref["uid"] in uids for ref in refs)]

    def _notify(self) -> None:
        for wake in self._wake:
            wake.set()


def _conforms(fake: FakeKube) -> KubeApi:
    """Let the type checker compare the fake with the protocol."""
    return fake


def _event_of(
    change: _Change, kind: Kind, namespace: str | None, selected: Callable[[Resource], bool]
) -> WatchEvent | None:
    """Return what a watch tells of a change: an object that leaves the selection is DELETED for it."""
    some = change.after or change.before
    assert some is not None, "a change has a before or an after"
    if change.plural != kind.plural or namespace not in {None, some["metadata"].get("namespace")}:
        return None
    was = change.before is not None and selected(change.before)
    is_ = change.after is not None and selected(change.after)
    if not (was or is_):
        return None
    type_: Literal["ADDED", "MODIFIED", "DELETED"] = "DELETED" if not is_ else "MODIFIED" if was else "ADDED"
    told = copy.deepcopy(dict(some))
    told["metadata"]["resourceVersion"] = str(change.version)
    return WatchEvent(type_, told)


def _selector(text: str) -> Callable[[Resource], bool]:
    """Return the predicate of a label selector of the forms `a=b`, `a!=b`, `a`, joined by commas."""
    terms = [term.strip() for term in text.split(",") if term.strip()]

    def selected(obj: Resource) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(_matches(term, labels) for term in terms)

    return selected


def _matches(term: str, labels: Mapping[str, str]) -> bool:
    if "!=" in term:
        key, value = term.split("!=")
        return labels.get(key) != value
    key, equals, value = term.replace("==", "=").partition("=")
    return labels.get(key) == value if equals else key in labels


def _writable(kind: Kind, obj: Resource, subresource: str) -> dict[str, Any]:
    """Return the part of the object that an apply may write here."""
    wanted = copy.deepcopy(dict(obj))
    wanted["metadata"] = {
        name: value for name, value in wanted["metadata"].items() if name not in {"resourceVersion", "uid"}
    }
    if subresource == "status":
        identity = {name: wanted["metadata"][name] for name in ("name", "namespace") if name in wanted["metadata"]}
        return {"metadata": identity, "status": wanted.get("status", {})}
    if kind.plural in _WITH_STATUS:
        wanted.pop("status", None)
    return wanted
