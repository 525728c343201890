"""Where a worker that is waited for has to come from: once pods wake, nothing says any more how deep they slept."""

from __future__ import annotations

from dataclasses import dataclass

from dormouse_gateway.hold.wait import Start
from dormouse_gateway.model import Deployment
from dormouse_gateway.workers.pool import EndpointPool
from dormouse_kube.reflector import ObjectKey

_STARTS = {1: Start.LEVEL1, 2: Start.LEVEL2, 3: Start.LEVEL3}


@dataclass(frozen=True, slots=True)
class _Slept:
    """How deep the workers in these pods, by UID, sleep or slept until they were woken."""

    level: int
    pods: frozenset[str]


class Slept:
    """Remembers what is asleep, or waking."""

    def __init__(self, pool: EndpointPool) -> None:
        """Take who knows the pods."""
        self._pool = pool
        self._slept: dict[ObjectKey, _Slept] = {}

    def __repr__(self) -> str:
        """Show who sleeps, how deep."""
        return f"Slept({self._slept!r})"

    def note(self, key: ObjectKey, deployment: Deployment | None, *, is_awake: bool) -> None:
        """Take how deep the model's workers sleep, if it is there and they do."""
        if deployment is None or is_awake:
            self._slept.pop(key, None)
        elif deployment.sleep_level:
            self._slept[key] = _Slept(deployment.sleep_level, self._pods(key))

    def start(self, deployment: Deployment) -> Start:
        """Tell from where the worker has to come. Pods that were not there during the sleep start from nothing."""
        pods, slept = self._pods(deployment.key), self._slept.get(deployment.key)
        if slept is None:  # this gateway has not seen it asleep
            return Start.LEVEL1 if pods and deployment.phase == "Waking" else Start.COLD
        if pods.isdisjoint(slept.pods):
            return Start.COLD
        return _STARTS.get(slept.level, Start.LEVEL2)

    def _pods(self, key: ObjectKey) -> frozenset[str]:
        return frozenset(endpoint.id.pod_uid for endpoint in self._pool.endpoints_of(key))
