"""The attention backends by name: ours, and those of installed packages, found by entry point. Chooses none.

A package adds one by an entry point of the group `dormouse.attention_backends` that points to its class, or to any
function without arguments that returns an `AttentionBackend`. Nothing is imported before a backend is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

from dormouse_worker.errors import InvalidSettings, WorkerError
from dormouse_worker.model.attention.interface import AttentionBackend

GROUP = "dormouse.attention_backends"
Factory = Callable[[], AttentionBackend]

BUILT_IN: Mapping[str, str] = MappingProxyType({"sdpa": "dormouse_worker.model.attention.sdpa:SdpaBackend"})


def backend_factories(installed: Iterable[EntryPoint] | None = None) -> Mapping[str, Factory]:
    """Return what makes each backend, by name: ours first, then those of the installed packages by name.

    A factory raises InvalidSettings, naming the package, if what it points to can not be imported or is no backend, and
    passes on a WorkerError of the backend's own. Raises InvalidSettings if two packages offer one name, or one of ours:
    which of them computes must not depend on the order of installation.
    """
    ours = [EntryPoint(name, value, GROUP) for name, value in BUILT_IN.items()]
    theirs = entry_points(group=GROUP) if installed is None else installed
    found: dict[str, EntryPoint] = {}
    for entry in (*ours, *sorted(theirs, key=lambda entry: entry.name)):
        if entry.name in found:
            raise InvalidSettings(
                f"attention backend {entry.name!r} is offered twice, by {_origin(found[entry.name])} and by "
                f"{_origin(entry)}; uninstall one of them or rename its entry point"
            )
        found[entry.name] = entry
    return {name: partial(_make, entry) for name, entry in found.items()}


def make_backend(name: str) -> AttentionBackend:
    """Return a new backend of this name. Raises InvalidSettings; see `backend_factories`."""
    factories = backend_factories()
    if name not in factories:
        raise InvalidSettings(f"attention_backend is {name!r}; there are auto, {', '.join(factories)}")
    return factories[name]()


def _make(entry: EntryPoint) -> AttentionBackend:
    what = f"attention backend {entry.name!r} of {_origin(entry)}"
    try:
        factory = entry.load()
    except Exception as error:  # whatever a module raises while it is imported
        raise InvalidSettings(f"{what}: loading {entry.value} fails: {type(error).__name__}: {error}") from error
    try:
        backend = factory()
    except WorkerError:
        raise
    except Exception as error:
        raise InvalidSettings(f"{what}: making it fails: {type(error).__name__}: {error}") from error
    if not (isinstance(getattr(backend, "name", None), str) and callable(getattr(backend, "plan", None))):
        raise InvalidSettings(f"{what}: {entry.value} gives a {type(backend).__name__}, which has no `name` and `plan`")
    made: AttentionBackend = backend
    return made


def _origin(entry: EntryPoint) -> str:
    """Return the distribution, as pip calls it."""
    if entry.dist is None:
        return "dormouse itself"
    return f"{entry.dist.name} {entry.dist.version}"
