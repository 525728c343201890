"""The attention backends by name: ours, and those of installed packages, found by entry point. Chooses none.

A package adds one by an entry point of the group `dormouse.attention_backends` that points to a `BackendFactory`, as a
backend's class is. Nothing of it is imported before somebody asks for that backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from dormouse_worker.common.errors import InvalidSettings, WorkerError
from dormouse_worker.model.attention.choose import BUILT_IN
from dormouse_worker.model.attention.interface import (
    AttentionBackend,
    AttentionShape,
    BackendFactory,
    BackendSizes,
    GraphSupport,
)
from dormouse_worker.model.attention.machine import Machine

GROUP = "dormouse.attention_backends"
NEEDED = ("name", "plan", "supports", "graph_support", "workspace_bytes", "bind_workspace")


@dataclass(frozen=True, slots=True)
class InstalledBackend:
    """Implements `BackendFactory` with what an entry point names. Raises InvalidSettings, naming the package."""

    entry: EntryPoint

    @property
    def what(self) -> str:
        """Return what errors call it."""
        return f"attention backend {self.entry.name!r} of {_origin(self.entry)}"

    @property
    def graph_support(self) -> GraphSupport:
        """See `BackendFactory`."""
        support: GraphSupport = self._loaded().graph_support
        return support

    def supports(self, machine: Machine, shape: AttentionShape) -> str | None:
        """See `BackendFactory`."""
        refusal: str | None = self._called("asking what it supports", self._loaded().supports, machine, shape)
        return refusal

    def __call__(self, sizes: BackendSizes) -> AttentionBackend:
        """See `BackendFactory`."""
        backend: AttentionBackend = self._called("making it", self._loaded(), sizes)
        return backend

    def _loaded(self) -> Any:
        factory = self._called(f"loading {self.entry.value}", self.entry.load)
        if missing := [name for name in NEEDED if not hasattr(factory, name)]:
            raise InvalidSettings(f"{self.what}: {self.entry.value} is no backend's class: it has no {missing[0]}")
        return factory

    def _called(self, doing: str, function: Any, *arguments: object) -> Any:
        try:
            return function(*arguments)
        except WorkerError:
            raise
        except Exception as error:  # whatever a foreign package raises
            raise InvalidSettings(f"{self.what}: {doing} fails: {type(error).__name__}: {error}") from error


def backend_factories(installed: Iterable[EntryPoint] | None = None) -> Mapping[str, BackendFactory]:
    """Return what makes each backend, by name: ours first, then those of the installed packages by name.

    Raises InvalidSettings if two packages offer one name, or one of ours: which of them computes must not depend on
    the order of installation.
    """
    theirs = entry_points(group=GROUP) if installed is None else installed
    found: dict[str, BackendFactory] = dict(BUILT_IN)
    for entry in sorted(theirs, key=lambda entry: entry.name):
        if entry.name in found:
            other = found[entry.name]
            origin = _origin(other.entry) if isinstance(other, InstalledBackend) else "dormouse itself"
            raise InvalidSettings(
                f"attention backend {entry.name!r} is offered twice, by {origin} and by {_origin(entry)}; "
                "uninstall one of them or rename its entry point"
            )
        found[entry.name] = InstalledBackend(entry)
    return found


def _origin(entry: EntryPoint) -> str:
    """Return the distribution, as pip calls it."""
    return "an unknown package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
