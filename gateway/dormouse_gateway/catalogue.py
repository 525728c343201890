"""Which deployment a model name means. Owns the known deployments; knows nothing of pods and of the wire.

A deployment always answers to namespace/name. It also answers to its model name, if no other deployment has the same:
of several, the oldest keeps it. A model name that spells another deployment's namespace/name loses against that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dormouse_gateway.model import Deployment
from dormouse_kube.reflector import ObjectKey


@dataclass(slots=True)
class Catalogue:
    """The known deployments, by key and by name."""

    _deployments: dict[ObjectKey, Deployment] = field(default_factory=dict)
    _claims: dict[str, set[ObjectKey]] = field(default_factory=dict)  # model name → who wants it

    def __repr__(self) -> str:
        """Show every name under which something answers, and what it means."""
        names = [f"{name}={deployment.full_name}" for name, deployment in sorted(self._by_name().items())]
        return f"Catalogue({', '.join(names)})"

    def __len__(self) -> int:
        """Return the number of deployments."""
        return len(self._deployments)

    def put(self, deployment: Deployment) -> None:
        """Add the deployment, or replace the one with the same key."""
        self.remove(deployment.key)
        self._deployments[deployment.key] = deployment
        self._claims.setdefault(deployment.model_name, set()).add(deployment.key)

    def remove(self, key: ObjectKey) -> None:
        """Forget the deployment; no error if it is not known."""
        gone = self._deployments.pop(key, None)
        if gone is None:
            return
        claims = self._claims[gone.model_name]
        claims.discard(key)
        if not claims:
            del self._claims[gone.model_name]

    def get(self, key: ObjectKey) -> Deployment | None:
        """Return the deployment with this key, None if there is none."""
        return self._deployments.get(key)

    def find(self, name: str) -> Deployment | None:
        """Return the deployment that this name means, None if it means none."""
        namespace, slash, rest = name.partition("/")
        exact = self._deployments.get(ObjectKey(namespace, rest)) if slash else None
        return exact or self._holder(name)

    def names(self) -> list[str]:
        """Return one name per deployment, sorted: the short one where it holds it."""
        return sorted(self.shortest(deployment) for deployment in self._deployments.values())

    def deployments(self) -> list[Deployment]:
        """Return all deployments, by key."""
        return [self._deployments[key] for key in sorted(self._deployments)]

    def shortest(self, deployment: Deployment) -> str:
        """Return the model name if the deployment holds it, else namespace/name."""
        return deployment.model_name if self.find(deployment.model_name) is deployment else deployment.full_name

    def _holder(self, model_name: str) -> Deployment | None:
        """Return the oldest of those that claim the name."""
        claimants = [self._deployments[key] for key in self._claims.get(model_name, ())]
        return min(claimants, key=lambda deployment: deployment.seniority, default=None)

    def _by_name(self) -> dict[str, Deployment]:
        full = {deployment.full_name: deployment for deployment in self._deployments.values()}
        return {self.shortest(deployment): deployment for deployment in full.values()} | full
