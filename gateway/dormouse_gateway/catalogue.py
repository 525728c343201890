"""Which deployment a model name means. Owns the known deployments; knows nothing of pods and of the wire.

A deployment always answers to namespace/name. It may also answer to its model name, its short one (`short_names`): a
caller's own deployments go first, then who holds the name in the cluster. A model name that spells another deployment's
namespace/name loses against that, and means nothing while that one is gone (`short_names` knows where there were any).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dormouse_api.short_names import ShortNames
from dormouse_gateway.model import Deployment, Meant
from dormouse_kube.reflector import ObjectKey

IsOwn = Callable[[Deployment], bool]


def nobodys(_deployment: Deployment) -> bool:
    """Belong to no caller."""
    return False


@dataclass(slots=True)
class Catalogue:
    """The known deployments, by key and by name."""

    short: ShortNames[ObjectKey] = field(default_factory=ShortNames)
    _deployments: dict[ObjectKey, Deployment] = field(default_factory=dict)
    _having: dict[str, set[ObjectKey]] = field(default_factory=dict)  # by the name of an adapter

    def __repr__(self) -> str:
        """Show every name under which something answers, and what it means."""
        names = [f"{name}={deployment.full_name}" for name, deployment in sorted(self._by_name().items())]
        return f"Catalogue({', '.join(names)})"

    def __len__(self) -> int:
        """Return the number of deployments."""
        return len(self._deployments)

    def put(self, deployment: Deployment) -> None:
        """Add the deployment, or replace the one with the same key."""
        self._forget_adapters(deployment.key)
        self._deployments[deployment.key] = deployment
        for name in deployment.adapters:
            self._having.setdefault(name, set()).add(deployment.key)
        self.short.put(deployment.key, deployment.model_name, deployment.created, said=deployment.name_said)

    def remove(self, key: ObjectKey) -> None:
        """Forget the deployment; no error if it is not known."""
        self._forget_adapters(key)
        self._deployments.pop(key, None)
        self.short.remove(key)
        self.short.freed()  # names that nobody wants any more are forgotten with it

    def get(self, key: ObjectKey) -> Deployment | None:
        """Return the deployment with this key, None if there is none."""
        return self._deployments.get(key)

    def find(self, name: str, is_own: IsOwn = nobodys) -> Deployment | None:
        """Return the deployment that this caller means by the name, None if it means none."""
        namespace, slash, rest = name.partition("/")
        exact = self._deployments.get(ObjectKey(namespace, rest)) if slash else None
        if exact:
            return exact
        key = self.short.own(name, lambda one: is_own(self._deployments[one])) or self.short.holder(name)
        return self._deployments[key] if key else None

    def find_adapter(self, name: str, is_own: IsOwn = nobodys) -> Meant | None:
        """Return the adapter that this caller means by ADAPTER or MODEL:ADAPTER, None if he means none.

        Of several deployments that have an adapter of this name his own go first, then the oldest. Alone it is a short
        name: what `short` keeps from him, or for another model, it does not mean.
        """
        for end in (index for index, letter in enumerate(name) if letter == ":"):
            base, adapter = self.find(name[:end], is_own), name[end + 1 :]
            if base and adapter in base.adapters:
                return Meant(base, adapter)
        having = [
            one
            for one in map(self._deployments.__getitem__, self._having.get(name, ()))
            if self.short.may_lend(name, one.key.namespace, is_own=is_own(one))
        ]
        first = min(having, key=lambda one: (not is_own(one), one.created, one.key), default=None)
        return Meant(first, name) if first else None

    def shortest_adapter(self, meant: Meant, is_own: IsOwn = nobodys) -> str:
        """Return the adapter's own name if this caller means it by that, else MODEL:ADAPTER."""
        is_taken = self.find(meant.adapter, is_own) is not None
        if not is_taken and self.find_adapter(meant.adapter, is_own) == meant:
            return meant.adapter
        return f"{self.shortest(meant.deployment, is_own)}:{meant.adapter}"

    def _forget_adapters(self, key: ObjectKey) -> None:
        """Forget which adapters the deployment has, before it changes or goes."""
        former = self._deployments.get(key)
        for name in set(former.adapters) if former else ():
            self._having[name].discard(key)
            if not self._having[name]:
                del self._having[name]

    def names(self) -> list[str]:
        """Return one name per deployment, sorted: the short one where it holds it."""
        return sorted(self.shortest(deployment) for deployment in self._deployments.values())

    def deployments(self) -> list[Deployment]:
        """Return all deployments, by key."""
        return [self._deployments[key] for key in sorted(self._deployments)]

    def shortest(self, deployment: Deployment, is_own: IsOwn = nobodys) -> str:
        """Return the model name if this caller means the deployment by it, else namespace/name."""
        is_meant = self.find(deployment.model_name, is_own) is deployment
        return deployment.model_name if is_meant else deployment.full_name

    def _by_name(self) -> dict[str, Deployment]:
        full = {deployment.full_name: deployment for deployment in self._deployments.values()}
        return {self.shortest(deployment): deployment for deployment in full.values()} | full
