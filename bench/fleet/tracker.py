"""Sees deployments and worker pods change, and remembers when. Owns the watches and the clock of every figure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from bench.fleet.follow import follow
from dormouse_api.names import LABEL_DEPLOYMENT
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS, KubeApi, Resource

POLL_S = 0.02


class FleetError(Exception):
    """The fleet did not do what is measured; the text says what was waited for and where logs are."""


@dataclass(frozen=True, slots=True)
class DeploymentSeen:
    """An InferenceDeployment as it was told of."""

    name: str
    is_ready: bool  # as of its present spec
    is_gone: bool = False


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A worker pod as it was told of."""

    name: str
    deployment: str
    is_ready: bool
    is_gone: bool = False


Seen = DeploymentSeen | PodSeen
Key = Callable[[Seen], str | None]  # what a sighting fulfils, None for nothing


def read_deployment(raw: Resource, *, is_gone: bool) -> DeploymentSeen:
    """Return what counts of an InferenceDeployment."""
    status = raw.get("status") or {}
    is_current = status.get("observedGeneration") == raw["metadata"]["generation"]
    return DeploymentSeen(raw["metadata"]["name"], is_current and _is_ready(status), is_gone)


def read_pod(raw: Resource, *, is_gone: bool) -> PodSeen:
    """Return what counts of a worker pod; one that is being deleted is not ready."""
    metadata = raw["metadata"]
    is_ready = _is_ready(raw.get("status") or {}) and "deletionTimestamp" not in metadata
    return PodSeen(metadata["name"], metadata["labels"][LABEL_DEPLOYMENT], is_ready, is_gone)


def _is_ready(status: Resource) -> bool:
    return any(item["type"] == "Ready" and item["status"] == "True" for item in status.get("conditions") or ())


def deployment_ready(seen: Seen) -> str | None:
    """Fulfil the name of a deployment that is Ready."""
    return seen.name if isinstance(seen, DeploymentSeen) and seen.is_ready else None


def pod_ready(seen: Seen) -> str | None:
    """Fulfil the name of the deployment of a pod that is Ready."""
    return seen.deployment if isinstance(seen, PodSeen) and seen.is_ready else None


class Expectation:
    """Names that are waited for, each until it is fulfilled for the first time. Made before what brings it about."""

    def __init__(self, names: Iterable[str], key: Key) -> None:
        self._key = key
        self._wanted = frozenset(names)
        self.times_s: dict[str, float] = {}
        self.done = asyncio.Event()

    def __repr__(self) -> str:
        return f"Expectation({self})"

    def __str__(self) -> str:
        return f"{len(self.times_s):,} of {len(self._wanted):,}"

    def see(self, seen: Seen, now_s: float) -> None:
        """Take note of a sighting."""
        name = self._key(seen)
        if name is None or name not in self._wanted or name in self.times_s:
            return
        self.times_s[name] = now_s
        if len(self.times_s) == len(self._wanted):
            self.done.set()

    async def wait(self, what: str, timeout_s: float) -> dict[str, float]:
        """Return when each name was fulfilled. Raises FleetError after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.done.wait()
        except TimeoutError:
            missing = sorted(self._wanted - self.times_s.keys())
            words = f"{len(missing)} of {len(self._wanted)}, for example {missing[0]}"
            raise FleetError(f"waited {timeout_s:.0f} s for {what}: {words} did not get there") from None
        return self.times_s


@dataclass(slots=True)
class Tracker:
    """The fleet as last told of, and who waits for changes."""

    clock: Callable[[], float] = time.monotonic
    ready: set[str] = field(default_factory=set)  # deployments
    pods: dict[str, dict[str, PodSeen]] = field(default_factory=dict)  # by deployment and by name
    expectations: list[Expectation] = field(default_factory=list)

    def __repr__(self) -> str:
        """Show the counts."""
        num_pods = sum(map(len, self.pods.values()))
        return f"Tracker({len(self.ready)} ready, {num_pods} pods, {len(self.expectations)} expectations)"

    def expect(self, names: Iterable[str], key: Key) -> Expectation:
        """Return what is fulfilled by sightings from now on."""
        self.expectations = [one for one in self.expectations if not one.done.is_set()]
        expectation = Expectation(names, key)
        self.expectations.append(expectation)
        return expectation

    def expect_new_pods(self, names: Sequence[str]) -> Expectation:
        """Expect pods that do not exist yet, by the names of their deployments."""
        known = frozenset(pod for name in names for pod in self.pods.get(name, ()))
        return self.expect(names, lambda seen: _new_pod(seen, known))

    def see(self, seen: Seen) -> None:
        """Take note of a sighting, now."""
        now_s = self.clock()
        match seen:
            case PodSeen(is_gone=True):
                self.pods.get(seen.deployment, {}).pop(seen.name, None)
            case PodSeen():
                self.pods.setdefault(seen.deployment, {})[seen.name] = seen
            case DeploymentSeen(is_ready=True, is_gone=False):
                self.ready.add(seen.name)
            case DeploymentSeen():
                self.ready.discard(seen.name)
        for expectation in self.expectations:
            expectation.see(seen, now_s)

    def is_settled(self, name: str) -> bool:
        """Return whether a deployment is Ready with one pod, which is Ready too."""
        pods = self.pods.get(name, {}).values()
        return name in self.ready and len(pods) == 1 and all(pod.is_ready for pod in pods)

    async def until_settled(self, names: Iterable[str], timeout_s: float = 60.0) -> None:
        """Wait until all are settled. Raises FleetError."""
        deadline_s = self.clock() + timeout_s
        for name in names:
            while not self.is_settled(name):
                if self.clock() >= deadline_s:
                    raise FleetError(f"waited {timeout_s:.0f} s for {name} to be Ready with one pod")
                await asyncio.sleep(POLL_S)


def _new_pod(seen: Seen, known: frozenset[str]) -> str | None:
    if not isinstance(seen, PodSeen) or seen.is_gone or seen.name in known:
        return None
    return seen.deployment


@asynccontextmanager
async def tracking(kube: KubeApi) -> AsyncIterator[Tracker]:
    """Follow the fleet while the context lasts; a broken watch ends it with its error."""
    tracker = Tracker()

    async def deployments() -> None:
        await follow(kube, INFERENCE_DEPLOYMENTS, lambda raw, gone: tracker.see(read_deployment(raw, is_gone=gone)))

    async def pods() -> None:
        see: Callable[[Resource, bool], None] = lambda raw, gone: tracker.see(read_pod(raw, is_gone=gone))  # noqa: E731
        await follow(kube, PODS, see, label_selector=LABEL_DEPLOYMENT)

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(deployments()), tasks.create_task(pods())]
        yield tracker
        for task in running:
            task.cancel()
