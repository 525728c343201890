"""What FakeKube keeps: objects as the server stores them, what each manager applied, the history of changes.

Knows versions, UIDs, generations and deletion in two steps; knows nothing of calls, their failures and watches.
"""

from __future__ import annotations

import json
import marshal
import uuid
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import Any, Literal, TypeVar

from dormouse_kube.api import PODS, Kind, Resource, WatchEvent
from dormouse_kube.errors import Conflict, Gone, Invalid
from dormouse_kube.merge import merge, remove_given_up

_WITH_GENERATION = {"inferencedeployments", "gpupools", "inferenceadapters", "inferencekeys"}
_WITH_STATUS = {"pods", "services", *_WITH_GENERATION}

_VERSION = 2  # of the format: the last in which nothing is shared

T = TypeVar("T")
Key = tuple[str, str, str]  # plural, namespace, name
Selected = Callable[[Resource], bool]


@dataclass(frozen=True, slots=True)
class Change:
    """One change in the history: what was, what is (None = nothing)."""

    version: int
    plural: str
    before: Resource | None
    after: Resource | None


@dataclass(slots=True)
class Store:
    """The objects of one server. What it is given and what it returns are copies."""

    clock: Callable[[], datetime]
    on_change: Callable[[], None]  # called after every change
    version: int = 1000
    _objects: dict[Key, dict[str, Any]] = field(default_factory=dict)
    _applied: dict[tuple[Key, str, str], dict[str, Any]] = field(default_factory=dict)  # last, by manager, subresource
    _history: list[Change] = field(default_factory=list)
    _oldest: int = 1000  # what was before this version is forgotten

    def __repr__(self) -> str:
        """Show how much it holds."""
        return f"{len(self._objects)} objects at version {self.version}"

    def get(self, key: Key) -> dict[str, Any] | None:
        """Return the object, None if there is none."""
        return _copied(self._objects.get(key))

    def of_kind(self, kind: Kind) -> list[dict[str, Any]]:
        """Return all objects of a kind, by namespace and name."""
        return [_copied(obj) for key, obj in sorted(self._objects.items()) if key[0] == kind.plural]

    def put(self, kind: Kind, key: Key, obj: Resource) -> Resource:
        """Store the object, with metadata as the server keeps it; the same content changes nothing."""
        stored = self._objects.get(key)
        fresh = sent({"apiVersion": kind.api_version, "kind": kind.kind, **obj})
        old: dict[str, Any] = (
            stored["metadata"]
            if stored
            else {"uid": fresh["metadata"].get("uid") or str(uuid.uuid4()), "creationTimestamp": self._now()}
        )
        kept = {
            name: old[name] for name in ("uid", "creationTimestamp", "resourceVersion", "generation") if name in old
        }
        fresh["metadata"] = {**fresh["metadata"], **kept}
        if kind.plural in _WITH_GENERATION:
            grown = stored is not None and stored.get("spec") != fresh.get("spec")
            fresh["metadata"]["generation"] = old.get("generation", 1) + int(grown)
        if fresh == stored:
            return _copied(fresh)
        if fresh["metadata"].get("deletionTimestamp") and stored and not _is_held(kind, fresh, None):
            self.drop(key)
            return fresh
        self.version += 1
        fresh["metadata"]["resourceVersion"] = str(self.version)
        self._objects[key] = fresh
        self._remember(Change(self.version, kind.plural, stored, fresh))
        return _copied(fresh)

    def apply(self, kind: Kind, obj: Resource, *, manager: str, subresource: str) -> Resource:
        """Merge what a manager applies; what it applied before and applies no more goes."""
        key = key_of(kind, obj)
        wanted = _writable(kind, obj, subresource)
        slot = (key, manager, subresource)
        pruned = remove_given_up(self.get(key) or {}, self._applied.get(slot, {}), wanted)
        merged = merge(pruned, wanted)
        self._applied[slot] = wanted
        return self.put(kind, key, merged)

    def delete(self, kind: Kind, key: Key, *, grace_period_s: int | None) -> None:
        """Remove the object, or only mark it as long as something holds it; safe without one."""
        stored = self.get(key)
        if stored is None:
            return
        if not _is_held(kind, stored, grace_period_s):
            self.drop(key)
        elif "deletionTimestamp" not in stored["metadata"]:
            stored["metadata"]["deletionTimestamp"] = self._now()
            self.put(kind, key, stored)

    def drop(self, key: Key) -> None:
        """Remove the object, if it is there, and what managers applied to it."""
        stored = self._objects.pop(key, None)
        if stored is None:
            return
        self._applied = {slot: applied for slot, applied in self._applied.items() if slot[0] != key}
        self.version += 1
        self._remember(Change(self.version, key[0], stored, None))

    def orphans(self) -> list[Key]:
        """Return every object that had owners and has none left."""
        uids = {obj["metadata"]["uid"] for obj in self._objects.values()}
        owners = {key: obj["metadata"].get("ownerReferences", []) for key, obj in self._objects.items()}
        return [key for key, refs in owners.items() if refs and not any(ref["uid"] in uids for ref in refs)]

    def changes_after(self, version: int) -> list[Change]:
        """Return what changed since; raises Gone where that is forgotten."""
        if version < self._oldest:
            raise Gone(f"too old resource version: {version} ({self._oldest})", status=410, reason="Expired")
        return self._history[bisect_right(self._history, version, key=attrgetter("version")) :]

    def compact(self) -> None:
        """Forget the history up to now."""
        self._oldest = self.version
        self._history.clear()

    def _remember(self, change: Change) -> None:
        self._history.append(change)
        self.on_change()

    def _now(self) -> str:
        return self.clock().strftime("%Y-%m-%dT%H:%M:%SZ")


def sent(obj: T) -> T:
    """Return a copy as it comes over a network. Raises TypeError for what cannot be sent."""
    copied: T = json.loads(json.dumps(obj))
    return copied


def _copied(obj: T) -> T:
    """Return a copy of what was `sent` before, in a quarter of the time: tests of whole passes do little else."""
    plain: Any = obj
    copied: T = marshal.loads(marshal.dumps(plain, _VERSION))  # noqa: S302  # nosec B302  # bytes of the line's own
    return copied


def key_of(kind: Kind, obj: Resource) -> Key:
    """Return where the object is kept."""
    metadata = obj["metadata"]
    return (kind.plural, metadata.get("namespace", "") if kind.namespaced else "", metadata["name"])


def check_version(key: Key, obj: Resource, stored: Resource | None) -> None:
    """Raise Conflict where the caller means another version or another object than the stored one."""
    version = obj["metadata"].get("resourceVersion")
    uid = obj["metadata"].get("uid")
    is_other = uid is not None and (stored is None or stored["metadata"]["uid"] != uid)
    if is_other or (version and (stored is None or stored["metadata"]["resourceVersion"] != version)):
        raise Conflict(f'{key[0]} "{key[2]}": the object has been modified', status=409, reason="Conflict")


def check_immutable(obj: Resource, stored: Resource | None) -> None:
    """Raise Invalid where a Secret or ConfigMap that says that it never changes would change."""
    if stored is not None and stored.get("immutable") and stored.get("data") != obj.get("data"):
        name = obj["metadata"]["name"]
        raise Invalid(f'"{name}" is invalid: data: field is immutable when `immutable` is set', status=422)


def with_status_of(kind: Kind, obj: Resource, stored: Resource | None) -> dict[str, Any]:
    """Return a copy whose status is the stored one: only the subresource writes it."""
    fresh = sent(dict(obj))
    if kind.plural in _WITH_STATUS:
        fresh.pop("status", None)
        if stored is not None:
            fresh["status"] = stored.get("status", {})
    return fresh


def scale_of(obj: Resource) -> Resource:
    """Return the scale subresource of an object."""
    kept = {name: obj["metadata"][name] for name in ("name", "namespace", "uid", "resourceVersion")}
    status = {"replicas": (obj.get("status") or {}).get("replicas", 0)}
    spec = {"replicas": obj["spec"]["replicas"]}
    return {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": kept, "spec": spec, "status": status}


def event_of(change: Change, kind: Kind, namespace: str | None, selected: Selected) -> WatchEvent | None:
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
    told = _copied(dict(some))
    told["metadata"]["resourceVersion"] = str(change.version)
    return WatchEvent(type_, told)


def selector(text: str) -> Selected:
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


def _is_held(kind: Kind, obj: Resource, grace_period_s: int | None) -> bool:
    """Return whether a deletion only marks the object: one with finalizers, and a pod that its node has to end."""
    runs = kind is PODS and bool(obj.get("spec", {}).get("nodeName"))
    return bool(obj["metadata"].get("finalizers")) or (runs and grace_period_s != 0)


def _writable(kind: Kind, obj: Resource, subresource: str) -> dict[str, Any]:
    """Return the part of the object that an apply may write here."""
    wanted = sent(dict(obj))
    wanted["metadata"] = {
        name: value for name, value in wanted["metadata"].items() if name not in {"resourceVersion", "uid"}
    }
    if subresource == "status":
        identity = {name: wanted["metadata"][name] for name in ("name", "namespace") if name in wanted["metadata"]}
        return {"metadata": identity, "status": wanted.get("status", {})}
    if subresource == "resize":
        identity = {name: wanted["metadata"][name] for name in ("name", "namespace") if name in wanted["metadata"]}
        return {"metadata": identity, "spec": wanted.get("spec", {})}
    if kind.plural in _WITH_STATUS:
        wanted.pop("status", None)
    return wanted
