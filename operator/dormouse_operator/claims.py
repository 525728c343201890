"""Which deployment answers to a model name that several want: the oldest, as gateways decide it too. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from dormouse_kube.api import Resource
from dormouse_operator.model import Key


class _Claim(NamedTuple):
    """What orders those who want the same name: of the same second the lesser key."""

    created: str
    key: Key


@dataclass(slots=True)
class Claims:
    """Who wants which name."""

    _by_name: dict[str, list[_Claim]] = field(default_factory=dict)  # the owner first
    _names: dict[Key, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Show the names that several want, and who they are."""
        rivals = {name: [str(claim.key) for claim in claims] for name, claims in self._by_name.items() if claims[1:]}
        return f"Claims({len(self._names)} deployments, {rivals})"

    def put(self, obj: Resource) -> list[Key]:
        """Take a deployment as it is now; return the others whose owner may be another one by that."""
        metadata = obj["metadata"]
        key = Key(metadata["namespace"], metadata["name"])
        name = ((obj.get("spec") or {}).get("model") or {}).get("name") or key.name
        if self._names.get(key) == name:
            return []
        concerned = self.remove(key)
        self._names[key] = name
        claims = self._by_name.setdefault(name, [])
        concerned += [claim.key for claim in claims]
        claims.append(_Claim(metadata.get("creationTimestamp", ""), key))
        claims.sort()
        return concerned

    def remove(self, key: Key) -> list[Key]:
        """Forget a deployment; return the others that wanted its name. No error if it is not known."""
        name = self._names.pop(key, None)
        if name is None:
            return []
        left = [claim for claim in self._by_name.pop(name) if claim.key != key]
        if left:
            self._by_name[name] = left
        return [claim.key for claim in left]

    def rival_of(self, key: Key) -> Key | None:
        """Return the older deployment that has the name of this one, None if this one has it."""
        owner = self._by_name[self._names[key]][0].key if key in self._names else key
        return None if owner == key else owner
