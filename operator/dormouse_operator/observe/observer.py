"""Reads the cache, the load and the workers into one frozen Observed. Writes nothing, decides nothing.

Whom it asks depends on what `sleep_ladder` says: a deployment that is to fall asleep has no workers at rest.

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

from dormouse_kube.api import DISRUPTION_BUDGETS, NETWORK_POLICIES, SERVICES, KubeApi, Resource
from dormouse_kube.errors import Unavailable
from dormouse_operator.decide import sleep_ladder, spare_replicas
from dormouse_operator.decide.condemned import by_epoch, by_key, outdated_images
from dormouse_operator.decide.made import sort_out
from dormouse_operator.decide.seals import Seals
from dormouse_operator.decide.settled_workers import worker_at_rest
from dormouse_operator.manifests import (
    choose_image,
    parse_budget,
    parse_policy,
    parse_ranks_service,
    parse_service,
    pod_digest_of,
    ranks_service_name,
    revision_of,
)
from dormouse_operator.model import Arrows, Deployment, Key, Observed, Pod, Rung, Worker, WorkerState
from dormouse_operator.observe.activity import ActivityBook
from dormouse_operator.observe.devices import Devices
from dormouse_operator.observe.refusals import Refusals
from dormouse_operator.observe.worker_statuses import Answer, Statuses, Unwelcome
from dormouse_operator.parse import parse_deployment, parse_pods
from dormouse_operator.watch.cache import Cache, Snapshot

_NOT_OURS = "it answers for another pod or other settings"
_SETTLED = {WorkerState.ASLEEP, WorkerState.FAILED}  # nothing changes there without a command or a new container


class HostMemory(Protocol):
    """Who watches over the host memory of copies that sleep."""

    def pressure_on(self, key: Key) -> str:
        """Return why a deployment's copies have to go, "" if they may stay."""
        ...


class Observation(NamedTuple):
    """What was observed, of which version, and which changes are told by themselves."""

    observed: Observed
    resource_version: str  # of the InferenceDeployment
    is_told: bool  # workers tell when they change
    meets_stranger: bool  # its Service or its policy is somebody else's, and nobody tells when that goes


class _Heard(NamedTuple):
    """What workers say, by name of their pods."""

    workers: dict[str, Worker]
    unreachable: dict[str, str]  # why others gave no answer
    refusing: dict[str, str]  # those of them that take us for no operator
    is_told: bool  # those that were asked tell of changes


class Observer:
    """Makes Observed. Raises SpecError, KubeError, and Unavailable before the cache was filled."""

    def __init__(  # noqa: PLR0913  # two worlds, two settings, and whom it asks
        self,
        kube: KubeApi,
        cache: Cache,
        statuses: Statuses,
        *,
        default_image: str,
        agreement_timeout_s: float,
        clock: Callable[[], datetime],
        activities: ActivityBook | None = None,
        host_memory: HostMemory | None = None,
        mutual_tls: bool = False,
        epoch: Callable[[], int] = lambda: 0,
        operator_keys: Sequence[str] = (),
        arrows: Arrows | None = None,
        seals: Seals | None = None,
    ) -> None:
        """Take the worlds, what Observed carries of the settings, and the load (what is missing is not known).

        Without `host_memory` copies that sleep may take what they need. `epoch` says our own; workers know us by one of
        the public `operator_keys`, we know pods that we made by `seals` (without them all that name us as owner). With
        `arrows` every deployment has a network policy.
        """
        self._arrows = arrows
        self._seals = seals
        self._operator_keys = operator_keys
        self._epoch = epoch
        self._host_memory = host_memory
        self._mutual_tls = mutual_tls
        self._activities = activities if activities is not None else ActivityBook(lambda: 0.0)
        self._kube = kube
        self._devices = Devices(kube)
        self._cache = cache
        self._statuses = statuses
        self._default_image = default_image
        self._agreement_timeout_s = agreement_timeout_s
        self._clock = clock

    def look(self, key: Key) -> Snapshot | None:
        """Return what is known of the deployment, None if it is gone. Raises Unavailable while nothing can be told."""
        if not self._cache.is_complete:
            raise Unavailable("the cluster was not listed yet")
        return self._cache.snapshot(key)

    async def observe(self, snapshot: Snapshot, refusals: Refusals) -> Observation:
        """Return what there is. `refusals` are of the last actions."""
        deployment = replace(parse_deployment(snapshot.deployment), mutual_tls=self._mutual_tls)
        claimed, followers, foreign = parse_pods(snapshot.pods)
        pods = sort_out(deployment, claimed, self._seals, made=snapshot.made)
        pressure = self._host_memory.pressure_on(deployment.key) if self._host_memory else ""
        evidence = sleep_ladder.gather(
            deployment,
            self._activities.get(deployment.key),
            self._clock(),
            pods=pods,
            is_pressed=bool(pressure),
            wanted_ago_s=self._activities.wanted_ago_s(deployment.key),
        )
        decision = sleep_ladder.decide(evidence)
        may_rest = decision.rung is Rung.ACTIVE
        unknowing = by_key(_own(deployment, pods), self._operator_keys)
        rested = _may_rest(pods, refusals) if may_rest else frozenset()
        heard = await self._ask_all(deployment, [pod for pod in pods if pod.name not in unknowing], rested=rested)
        condemned = unknowing | by_epoch(heard.workers, now=evidence.now, epoch=self._epoch())
        answers = {name: worker for name, worker in heard.workers.items() if name not in condemned}
        workers, strangers = _sort_by_settings(pods, answers)
        if not may_rest and sleep_ladder.has_new_requests(deployment.recorded, workers):
            decision = sleep_ladder.decide(replace(evidence, is_stirred=True))
        num_away = deployment.replicas - decision.num_present(deployment.replicas)
        deployment = replace(deployment, replicas=deployment.replicas - num_away)
        raw_service = snapshot.service or await self._kube.get(SERVICES, *deployment.key)
        service = parse_service(raw_service, deployment)
        ranks_service = parse_ranks_service(await self._ranks_service(snapshot, deployment), deployment)
        policy = parse_policy(await self._policy(snapshot, deployment), deployment, self._arrows, pods)
        spares = spare_replicas.choose(decision.ladder, _own(deployment, pods), workers, refusals.by_pod)
        outdated = outdated_images(_own(deployment, pods), heard.refusing, self._operator_keys)
        image = choose_image(deployment, pods, self._default_image, outdated=outdated)
        observed = Observed(
            deployment=deployment,
            now=evidence.now,
            image=image,
            revision=revision_of(deployment, image),
            pods=pods,
            followers=followers,
            foreign=foreign,
            workers=workers,
            unreachable={**dict.fromkeys(strangers, _NOT_OURS), **heard.unreachable},
            condemned=condemned,
            refusing=heard.refusing,
            refusals=refusals.by_pod,
            forbidden=refusals.forbidden,
            rejections=refusals.told,
            dropped=refusals.dropped,
            service=service,
            ranks_service=ranks_service,
            name_owner=snapshot.rival,
            policy=policy,
            arrows=self._arrows,
            budget=parse_budget(await self._budget(snapshot, deployment), deployment, len(spares)),
            devices=await self._devices.of(deployment, (*pods, *chain.from_iterable(followers.values()))),
            agreement_timeout_s=self._agreement_timeout_s,
            pod_digest=pod_digest_of(deployment, image),
            strangers=strangers,
            ladder=decision.ladder,
            ladder_due=decision.due,
            spares=spares,
            num_away=num_away,
            pressure=pressure,
        )
        return Observation(
            observed,
            resource_version=snapshot.deployment["metadata"]["resourceVersion"],
            is_told=heard.is_told,
            meets_stranger=(snapshot.service is None and service is not None)
            or (snapshot.ranks_service is None and ranks_service is not None)
            or (snapshot.policy is None and policy is not None),
        )

    async def _budget(self, snapshot: Snapshot, deployment: Deployment) -> Resource | None:
        """Return the disruption budget; not looked for where one replica needs none."""
        if snapshot.budget or deployment.replicas <= 1:
            return snapshot.budget
        return await self._kube.get(DISRUPTION_BUDGETS, *deployment.key)

    async def _policy(self, snapshot: Snapshot, deployment: Deployment) -> Resource | None:
        """Return the network policy; not looked for where none is wanted."""
        if snapshot.policy or self._arrows is None:
            return snapshot.policy
        return await self._kube.get(NETWORK_POLICIES, *deployment.key)

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

    async def _ask_all(self, deployment: Deployment, pods: Iterable[Pod], *, rested: Collection[str]) -> _Heard:
        """Return what is known of each worker; those of `rested` are not asked where they are at rest."""
        own = _own(deployment, pods)
        known = {pod.name: found for pod in own if pod.name in rested and (found := worker_at_rest(deployment, pod))}
        asked = [pod for pod in own if pod.can_be_asked and pod.name not in known]
        answers = await asyncio.gather(*(self._statuses.ask(deployment.key, pod) for pod in asked))
        told = dict(zip(asked, answers, strict=True))
        is_told = self._statuses.follow(deployment.key, [pod.uid for pod in asked if _is_moving(told[pod])])
        unreachable: dict[str, str] = {}
        for pod, answer in told.items():
            if isinstance(answer, str):
                unreachable[pod.name] = answer
            elif answer.pod_uid != pod.uid:
                unreachable[pod.name] = _NOT_OURS
            else:
                known[pod.name] = answer
        refusing = {pod.name: str(answer) for pod, answer in told.items() if isinstance(answer, Unwelcome)}
        return _Heard(known, unreachable, refusing, is_told)


def _may_rest(pods: Iterable[Pod], refusals: Refusals) -> frozenset[str]:
    """Return the names of those who need not be asked: who refused a command is not as it was recorded."""
    return frozenset(pod.name for pod in pods if pod.name not in refusals.by_pod)


def _own(deployment: Deployment, pods: Iterable[Pod]) -> list[Pod]:
    return [pod for pod in pods if pod.owner_uid == deployment.uid and not pod.has_ended]


def _sort_by_settings(
    pods: Iterable[Pod], answers: Mapping[str, Worker]
) -> tuple[dict[str, Worker], dict[str, Worker]]:
    """Return the answers of the engines that their pods' labels speak of, and those of others."""
    revisions = {pod.name: pod.revision for pod in pods}
    own = {name for name, worker in answers.items() if worker.settings_digest == revisions[name]}
    strangers = {name: worker for name, worker in answers.items() if name not in own}
    return {name: answers[name] for name in own}, strangers


def _is_moving(answer: Answer) -> bool:
    """Tell whether the worker may be in another state soon without being told to."""
    return isinstance(answer, str) or answer.state not in _SETTLED
