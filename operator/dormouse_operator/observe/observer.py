"""Reads the cache, the load and the workers into one frozen Observed. Writes nothing, decides nothing.

Whom it asks, and whether it looks for a disruption budget, `questions` says: a deployment that is to fall asleep has no
workers at rest.

Only a Service, a disruption budget or a network policy that the cache does not hold is asked for: somebody else's of
that name carries no label of ours, so no watch of ours tells of it, and it must not be taken over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from typing import NamedTuple, Protocol

from dormouse_kube.api import DAEMON_SETS, DISRUPTION_BUDGETS, NETWORK_POLICIES, SERVICES, KubeApi, Resource
from dormouse_kube.errors import Unavailable
from dormouse_operator.decide.adapter_sets import merge
from dormouse_operator.decide.questions import Questions, questions_of
from dormouse_operator.decide.release import Release
from dormouse_operator.manifests import pre_pull_name, ranks_service_name
from dormouse_operator.model import (
    Contest,
    Deployment,
    Download,
    Key,
    Observed,
    Pod,
    Pressure,
    Turn,
    Worker,
    WorkerState,
)
from dormouse_operator.model.adapters import HeldAdapter
from dormouse_operator.model.pools import Pool
from dormouse_operator.observe.activity import ActivityBook
from dormouse_operator.observe.adapters import AdapterBook
from dormouse_operator.observe.devices import Devices
from dormouse_operator.observe.inference_pools import look_for_pool
from dormouse_operator.observe.refusals import Refusals
from dormouse_operator.observe.worker_statuses import Answer, Statuses, Unwelcome
from dormouse_operator.parse import SpecError, parse_deployment, parse_offer, parse_pods, parse_pool
from dormouse_operator.watch.cache import Cache
from dormouse_operator.watch.snapshots import Snapshot

_SETTLED = {
    WorkerState.ASLEEP,
    WorkerState.STANDBY,
    WorkerState.FAILED,
}  # nothing changes there without a command or a new container


class HostMemory(Protocol):
    """Who watches over the host memory of copies that sleep."""

    def pressure_on(self, key: Key) -> Pressure | None:
        """Return how deep a deployment has to sleep for lack of it, None if as it does."""
        ...

    async def look_at(self, nodes: Collection[str]) -> None:
        """Make known how much memory nodes have."""
        ...


class Neighbours(Protocol):
    """Who knows which deployments share a GPU outside of pools."""

    def turn_of(self, key: Key) -> Turn | None:
        """Return what a deployment has to do with its neighbours, None where it has a GPU for itself."""
        ...


class Observation(NamedTuple):
    """What was observed, of which version, and which changes are told by themselves."""

    observed: Observed
    questions: Questions  # that were asked for it
    resource_version: str  # of the InferenceDeployment
    is_told: bool  # workers tell when they change
    meets_stranger: bool  # its Service, policy or pool is of nobody who tells of changes


class _Heard(NamedTuple):
    """What workers say, by name of their pods."""

    answers: dict[str, Worker]
    downloads: dict[str, Download]  # of those that fetch their model first
    unreachable: dict[str, str]  # why others gave no answer
    refusing: dict[str, str]  # those of them that take us for no operator
    is_told: bool  # those that were asked tell of changes


class Observer:
    """Makes Observed. Raises SpecError, KubeError, and Unavailable before the cache was filled."""

    def __init__(  # noqa: PLR0913  # two worlds, the settings, and whom it asks
        self,
        kube: KubeApi,
        cache: Cache,
        statuses: Statuses,
        *,
        release: Release,
        clock: Callable[[], datetime],
        activities: ActivityBook | None = None,
        host_memory: HostMemory | None = None,
        neighbours: Neighbours | None = None,
        mutual_tls: bool = False,
        epoch: Callable[[], int] = lambda: 0,
        adapters: AdapterBook | None = None,
        contest: Callable[[Key], Contest] = lambda _: Contest(),  # where nobody looks
    ) -> None:
        """Take the worlds, the release's settings, and the load (what is missing is not known).

        Without `host_memory` copies that sleep may take what they need. `epoch` says our own, `contest` who writes
        replicas that others write, too.
        """
        self._contest = contest
        self._release = release
        self._adapters = adapters
        self._epoch = epoch
        self._host_memory = host_memory
        self._neighbours = neighbours
        self._mutual_tls = mutual_tls
        self._activities = activities if activities is not None else ActivityBook(lambda: 0.0)
        self._kube = kube
        self._devices = Devices(kube)
        self._cache = cache
        self._statuses = statuses
        self._clock = clock

    def look(self, key: Key) -> Snapshot | None:
        """Return what is known of the deployment, None if it is gone. Raises Unavailable while nothing can be told."""
        if not self._cache.is_complete:
            raise Unavailable("the cluster was not listed yet")
        return self._cache.snapshot(key)

    async def observe(self, snapshot: Snapshot, refusals: Refusals) -> Observation:
        """Return what there is. `refusals` are of the last actions."""
        known = self._gather(snapshot, refusals)
        questions = questions_of(known, self._release)
        heard = await self._ask_all(known.deployment, questions)
        if self._host_memory:
            await self._host_memory.look_at({pod.node for pod in known.pods if pod.node})
        service = snapshot.service or await self._kube.get(SERVICES, *known.deployment.key)
        pool = await look_for_pool(self._kube, known.deployment, self._release.picker, service)
        observed = replace(
            known,
            epoch=self._epoch(),
            answers=heard.answers,
            downloads=heard.downloads,
            unreachable=heard.unreachable,
            refusing=heard.refusing,
            held_adapters=await self._held_adapters(known.deployment, questions.asked, heard.answers),
            service=service,
            inference_pool=pool,
            ranks_service=await self._ranks_service(snapshot, known.deployment),
            policy=await self._policy(snapshot, known.deployment),
            pre_pull=await self._pre_pull(snapshot, known.deployment),
            budget=await self._budget(snapshot, known.deployment, questions),
            devices=await self._devices.of(known.deployment, (*known.pods, *chain(*known.followers.values()))),
        )
        return Observation(
            observed,
            questions,
            resource_version=snapshot.deployment["metadata"]["resourceVersion"],
            is_told=heard.is_told,
            meets_stranger=(snapshot.service is None and observed.service is not None)
            or (snapshot.ranks_service is None and observed.ranks_service is not None)
            or (snapshot.policy is None and observed.policy is not None)
            or (snapshot.pre_pull is None and observed.pre_pull is not None)
            or pool is not None,
        )

    def _gather(self, snapshot: Snapshot, refusals: Refusals) -> Observed:
        """Return what is known before anybody was asked."""
        written = replace(parse_deployment(snapshot.deployment), mutual_tls=self._mutual_tls)
        deployment = merge(written, map(parse_offer, snapshot.adapters)).deployment
        pods, followers, foreign = parse_pods(snapshot.pods)
        return Observed(
            deployment=deployment,
            now=self._clock(),
            pods=pods,
            followers=followers,
            foreign=foreign,
            made=snapshot.made,
            activity=self._activities.get(deployment.key),
            wanted_ago_s=self._activities.wanted_ago_s(deployment.key),
            contest=self._contest(deployment.key),
            canary_fault=self._canary_fault(deployment),
            has_standing=self._has_standing(deployment),
            pressure=self._host_memory.pressure_on(deployment.key) if self._host_memory else None,
            turn=self._neighbours.turn_of(deployment.key) if self._neighbours else None,
            refusals=refusals.by_pod,
            rejections=refusals.told,
            dropped=refusals.dropped,
            forbidden=refusals.forbidden,
            name_owner=snapshot.rival,
            pool=_readable(snapshot.pool),
            placed=snapshot.placed,
        )

    def _canary_fault(self, deployment: Deployment) -> str:
        canary = deployment.canary
        return self._activities.canary_fault(deployment.key, canary.try_name) if canary else ""

    def _has_standing(self, deployment: Deployment) -> bool:
        canary = deployment.canary
        return bool(canary and self._cache.snapshot(Key(deployment.key.namespace, canary.of)))

    async def _budget(self, snapshot: Snapshot, deployment: Deployment, questions: Questions) -> Resource | None:
        """Return the disruption budget; not looked for where one replica needs none."""
        if snapshot.budget or not questions.looks_for_budget:
            return snapshot.budget
        return await self._kube.get(DISRUPTION_BUDGETS, *deployment.key)

    async def _policy(self, snapshot: Snapshot, deployment: Deployment) -> Resource | None:
        """Return the network policy; not looked for where none is wanted."""
        if snapshot.policy or self._release.arrows is None:
            return snapshot.policy
        return await self._kube.get(NETWORK_POLICIES, *deployment.key)

    async def _pre_pull(self, snapshot: Snapshot, deployment: Deployment) -> Resource | None:
        """Return the DaemonSet that has the model on nodes; not looked for where none is wanted."""
        if snapshot.pre_pull or deployment.pre_pull is None:
            return snapshot.pre_pull
        return await self._kube.get(DAEMON_SETS, deployment.key.namespace, pre_pull_name(deployment.key.name))

    async def _ranks_service(self, snapshot: Snapshot, deployment: Deployment) -> Resource | None:
        """Return the Service under which the pods of groups find each other; not looked for where there are none."""
        if snapshot.ranks_service or not deployment.parallelism.is_grouped:
            return snapshot.ranks_service
        return await self._kube.get(SERVICES, deployment.key.namespace, ranks_service_name(deployment.key.name))

    def refresh(self, key: Key) -> None:
        """Note that workers were given commands."""
        self._statuses.refresh(key)

    def forget(self, key: Key) -> None:
        """Note that the deployment is gone."""
        self._statuses.follow(key, ())
        self._devices.forget(key)
        if self._adapters:
            self._adapters.forget(key)

    async def _held_adapters(
        self, deployment: Deployment, pods: Sequence[Pod], answers: Mapping[str, Worker]
    ) -> Mapping[str, tuple[HeldAdapter, ...]]:
        """Return what workers say of their adapters, where there may be some."""
        if self._adapters is None or not deployment.engine.enable_lora:
            return {}
        return await self._adapters.of(deployment.key, pods, answers)

    async def _ask_all(self, deployment: Deployment, questions: Questions) -> _Heard:
        """Return what workers and downloads say, and follow workers that are on their way to another state."""
        pods = questions.asked
        answers = await asyncio.gather(
            *(self._statuses.ask(deployment.key, pod) for pod in (*pods, *questions.fetching))
        )
        told = dict(zip((pod.name for pod in pods), answers[: len(pods)], strict=True))
        is_told = self._statuses.follow(deployment.key, [pod.uid for pod in pods if _is_moving(told[pod.name])])
        return _Heard(
            answers={name: answer for name, answer in told.items() if isinstance(answer, Worker)},
            downloads=_downloads(zip(questions.fetching, answers[len(pods) :], strict=True)),
            unreachable={name: answer for name, answer in told.items() if isinstance(answer, str)},
            refusing={name: str(answer) for name, answer in told.items() if isinstance(answer, Unwelcome)},
            is_told=is_told,
        )


def _downloads(told: Iterable[tuple[Pod, Answer]]) -> dict[str, Download]:
    """Return how far pods say that they are, by name; not of those that say nothing, or are others by now."""
    workers = ((pod, answer) for pod, answer in told if isinstance(answer, Worker) and answer.pod_uid == pod.uid)
    return {pod.name: worker.download for pod, worker in workers if worker.download}


def _readable(pool: Resource | None) -> Pool | None:
    """Return a pool, None where there is none that can be read."""
    try:
        return parse_pool(pool) if pool else None
    except SpecError:
        return None


def _is_moving(answer: Answer) -> bool:
    """Return whether the worker may be in another state soon without being told to."""
    return isinstance(answer, str) or answer.state not in _SETTLED
