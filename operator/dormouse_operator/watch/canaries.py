"""Which deployments are canaries, and of whom: what is said of one depends on whether the other is there. Pure."""

from __future__ import annotations

from dormouse_kube.api import Resource
from dormouse_operator.model import Key


class Canaries:
    """The canaries that there are."""

    def __init__(self) -> None:
        """Know of none."""
        self._of: dict[Key, Key] = {}

    def __repr__(self) -> str:
        """Show the count."""
        return f"Canaries({len(self._of)})"

    def of(self, key: Key) -> list[Key]:
        """Return the canaries that share a deployment's requests, by name."""
        return sorted(canary for canary, standing in self._of.items() if standing == key)

    def put(self, key: Key, obj: Resource) -> None:
        """Take a deployment as it is now, also one whose spec cannot be read."""
        name = ((obj.get("spec") or {}).get("canary") or {}).get("of")
        if name:
            self._of[key] = Key(key.namespace, str(name))
        else:
            self.remove(key)

    def remove(self, key: Key) -> None:
        """Forget a deployment; safe if it is no canary."""
        self._of.pop(key, None)
