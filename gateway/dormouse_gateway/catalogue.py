"""Which deployment, or adapter, a model name means. Owns the known deployments; knows nothing of pods and of the wire.

A deployment always answers to namespace/name. It may also answer to its model name, its short one (`short_names`): a
caller's own deployments go first, then who holds the name in the cluster. A model name that spells another deployment's
namespace/name loses against that, and means nothing while that one is gone (`short_names` knows where there were any).

An adapter answers to MODEL:ADAPTER, and where no model may have it to its own name: by the same rules, among adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import NamedTuple

from dormouse_api.short_names import ShortNames
from dormouse_gateway.model import Deployment, Meant
from dormouse_kube.reflector import ObjectKey

IsOwn = Callable[[Deployment], bool]


def nobodys(_deployment: Deployment) -> bool:
    """Belong to no caller."""
    return False


class _AdapterKey(NamedTuple):
    """An adapter of a deployment."""

    namespace: str
    deployment: str
    adapter: str

    @property
    def base(self) -> ObjectKey:
        """Return the deployment."""
        return ObjectKey(self.namespace, self.deployment)


@dataclass(slots=True)
class Catalogue:
    """The known deployments, by key and by name."""

    short: ShortNames[ObjectKey] = field(default_factory=ShortNames)
    of_adapters: ShortNames[_AdapterKey] = field(default_factory=ShortNames)
    _deployments: dict[ObjectKey, Deployment] = field(default_factory=dict)
    _canaries: dict[ObjectKey, set[ObjectKey]] = field(
        default_factory=dict
    )  # by the deployment whose requests they share

    def __repr__(self) -> str:
        """Show every name under which something answers, and what it means."""
        names = [f"{name}={deployment.full_name}" for name, deployment in sorted(self._by_name().items())]
        return f"Catalogue({', '.join(names)})"

    def __len__(self) -> int:
        """Return the number of deployments."""
        return len(self._deployments)

    def put(self, deployment: Deployment) -> None:
        """Add the deployment, or replace the one with the same key."""
        self._forget_adapters(deployment.key, but=deployment.adapters)
        self._forget_canary(deployment.key)
        self._deployments[deployment.key] = deployment
        if deployment.canary:
            self._canaries.setdefault(_standing(deployment), set()).add(deployment.key)
        for name, since in deployment.adapters.items():
            self.of_adapters.put(_AdapterKey(*deployment.key, name), name, since)
        self.short.put(deployment.key, deployment.model_name, deployment.created, said=deployment.name_said)

    def remove(self, key: ObjectKey) -> None:
        """Forget the deployment; no error if it is not known."""
        self._forget_adapters(key)
        self._forget_canary(key)
        self._deployments.pop(key, None)
        self.short.remove(key)
        self.short.freed()  # names that nobody wants any more are forgotten with it

    def get(self, key: ObjectKey) -> Deployment | None:
        """Return the deployment with this key, None if there is none."""
        return self._deployments.get(key)

    def canary_of(self, key: ObjectKey) -> Deployment | None:
        """Return who shares the deployment's requests: of several the oldest; None for nobody."""
        known = [self._deployments[one] for one in self._canaries.get(key, ())]
        return min(known, key=lambda one: (one.created, one.key), default=None)

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

        Of several adapters of this name his own go first, then the one that had it first. Alone it is a short name:
        what `short` keeps from him, or for another model, it does not mean.
        """
        for end in (index for index, letter in enumerate(name) if letter == ":"):
            base, adapter = self.find(name[:end], is_own), name[end + 1 :]
            if base and adapter in base.adapters:
                return Meant(base, adapter)
        own = self.of_adapters.own(name, lambda key: is_own(self._deployments[key.base]))
        key = own or self.of_adapters.holder(name)
        if key is None or not self.short.may_lend(name, key.namespace, is_own=own is not None):
            return None
        return Meant(self._deployments[key.base], name)

    def shortest_adapter(self, meant: Meant, is_own: IsOwn = nobodys) -> str:
        """Return the adapter's own name if this caller means it by that, else MODEL:ADAPTER."""
        is_taken = self.find(meant.adapter, is_own) is not None
        if not is_taken and self.find_adapter(meant.adapter, is_own) == meant:
            return meant.adapter
        return f"{self.shortest(meant.deployment, is_own)}:{meant.adapter}"

    def _forget_adapters(self, key: ObjectKey, *, but: Container[str] = ()) -> None:
        """Forget adapters of the deployment, before it changes or goes, but for those that it keeps."""
        former = self._deployments.get(key)
        for name in former.adapters if former else ():
            if name not in but:
                self.of_adapters.remove(_AdapterKey(*key, name))
        self.of_adapters.freed()  # as with models

    def _forget_canary(self, key: ObjectKey) -> None:
        """Forget whose requests the deployment shared, before it changes or goes."""
        former = self._deployments.get(key)
        if former and former.canary:
            standing = _standing(former)
            self._canaries[standing].discard(key)
            if not self._canaries[standing]:
                del self._canaries[standing]

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


def _standing(deployment: Deployment) -> ObjectKey:
    """Return whose requests a canary shares."""
    assert deployment.canary, "only canaries do"
    return ObjectKey(deployment.key.namespace, deployment.canary.of)
