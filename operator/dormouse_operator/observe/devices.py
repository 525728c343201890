"""Which devices pods have through ResourceClaims. An allocation stays as long as its pod, so it is read once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dormouse_kube.api import RESOURCE_CLAIMS, KubeApi
from dormouse_kube.errors import Forbidden
from dormouse_operator.model import Deployment, Key, Pod
from dormouse_operator.parse import parse_devices

_MOST_DEVICES = 64  # as the schema has it, for each pod


class Devices:
    """Reads claims of pods that have a node: before that nothing is allocated."""

    def __init__(self, kube: KubeApi) -> None:
        """Take the API."""
        self._kube = kube
        self._known: dict[Key, dict[str, tuple[str, ...]]] = {}  # by the pod's UID

    def __repr__(self) -> str:
        """Show how many deployments have pods with claims."""
        return f"Devices({len(self._known)} deployments)"

    async def of(self, deployment: Deployment, pods: Iterable[Pod]) -> Mapping[str, tuple[str, ...]]:
        """Return the devices by the pod's name, without pods that have none. Raises KubeError but no Forbidden.

        A release whose operator may not read claims yet, in the middle of an upgrade, works without them.
        """
        known = self._known.get(deployment.key, {})
        claiming = [pod for pod in pods if pod.claims and pod.is_scheduled]
        found = {pod.uid: known.get(pod.uid) or await self._read(deployment.key, pod) for pod in claiming}
        if found:
            self._known[deployment.key] = found
        else:
            self.forget(deployment.key)
        return {pod.name: found[pod.uid] for pod in claiming if found[pod.uid]}

    def forget(self, key: Key) -> None:
        """Drop what is known of a deployment that is gone."""
        self._known.pop(key, None)

    async def _read(self, key: Key, pod: Pod) -> tuple[str, ...]:
        devices: list[str] = []
        for name in pod.claims:
            try:
                claim = await self._kube.get(RESOURCE_CLAIMS, key.namespace, name)
            except Forbidden:
                return ()
            devices += parse_devices(claim or {})
        return tuple(devices[:_MOST_DEVICES])
