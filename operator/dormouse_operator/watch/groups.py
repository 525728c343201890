"""Copies of the objects of one deployment, packed: compressed JSON, some 1 KB each.

Of managedFields only the managers of replicas are kept: who scales a deployment.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dormouse_kube.api import Kind, Resource
from dormouse_operator.parse import kept_managers

Slot = tuple[str, str]  # plural, name


class Entry(NamedTuple):
    """One object."""

    version: int
    uid: str
    packed: bytes
    is_made: bool = False  # it was an answer to our own `create`
    generation: int = 0  # counts the changes of its spec; 0 where nobody does


@dataclass(slots=True)
class Group:
    """The objects of one deployment, InferenceAdapters that name it among them; of a pool itself alone."""

    entries: dict[Slot, Entry] = field(default_factory=dict)
    version: int = 0

    def get(self, slot: Slot) -> Resource | None:
        """Return an object, None if it is not known."""
        entry = self.entries.get(slot)
        return _unpack(entry) if entry else None

    def of(self, kind: Kind) -> tuple[Resource, ...]:
        """Return the objects of a kind, by name."""
        return tuple(_unpack(entry) for (plural, _), entry in sorted(self.entries.items()) if plural == kind.plural)

    def has(self, kind: Kind) -> bool:
        """Return whether there is an object of a kind."""
        return any(plural == kind.plural for plural, _ in self.entries)

    @property
    def made(self) -> frozenset[str]:
        """Return the UIDs of what the API server gave us as answers to `create`."""
        return frozenset(entry.uid for entry in self.entries.values() if entry.is_made)


def pack(obj: Resource) -> bytes:
    """Return the object as bytes."""
    metadata = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
    if managers := kept_managers(obj["metadata"]):
        metadata["managedFields"] = managers
    return zlib.compress(json.dumps({**obj, "metadata": metadata}, separators=(",", ":")).encode(), level=1)


def _unpack(entry: Entry) -> dict[str, Any]:
    unpacked: dict[str, Any] = json.loads(zlib.decompress(entry.packed))
    return unpacked
