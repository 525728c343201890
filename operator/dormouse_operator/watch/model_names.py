"""Which deployment answers to a model name that several want, as gateways decide it too. Pure."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from dormouse_api.short_names import NameRules, ShortNames, said_of
from dormouse_kube.api import Resource
from dormouse_operator.model import Key

SOMEBODY = "one that is gone"  # who had a name before this operator began to look


class Claims:
    """Who wants which name."""

    def __init__(self, rules: NameRules | None = None, clock: Callable[[], float] = monotonic) -> None:
        """Take what is set of names; know nobody."""
        self._names: ShortNames[Key] = ShortNames(rules, clock)

    def __repr__(self) -> str:
        """Show the names that several want, and who they are."""
        return f"Claims{self._names!r}"

    def put(self, obj: Resource) -> list[Key]:
        """Take a deployment as it is now; return the others whose owner may be another one by that."""
        metadata = obj["metadata"]
        key = Key(metadata["namespace"], metadata["name"])
        name = model_name_of(obj)
        said = said_of(obj.get("status") or {}, name)
        before = self._names.others(key)
        if self._names.put(key, name, metadata.get("creationTimestamp", ""), said=said):
            return [*before, *self._names.others(key)]
        return []

    def remove(self, key: Key) -> list[Key]:
        """Forget a deployment; return the others that wanted its name. No error if it is not known."""
        left = self._names.others(key)
        self._names.remove(key)
        return left

    def freed(self) -> list[Key]:
        """Return who wanted a name that others may have from now on; each is told once."""
        return self._names.freed()

    def rival_of(self, key: Key) -> str:
        """Return who keeps this one from being called by its name, in words; "" if nobody does."""
        if self._names.is_waiting(key) and (namespace := self._names.spelled(key)):
            return f"the namespace {namespace}"
        return str(self._names.keeper(key) or SOMEBODY) if self._names.is_waiting(key) else ""


def model_name_of(obj: Resource) -> str:
    """Return what a deployment wants to be called, also one whose spec cannot be read."""
    name = ((obj.get("spec") or {}).get("model") or {}).get("name") or obj["metadata"]["name"]
    return str(name)
