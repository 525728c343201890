"""Reads the cluster and the workers into one frozen Observed. Writes nothing, decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from dormouse_kube.api import DISRUPTION_BUDGETS, INFERENCE_DEPLOYMENTS, PODS, SERVICES, KubeApi, Resource
from dormouse_operator.errors import WorkerError
from dormouse_operator.manifests import (
    choose_image,
    parse_budget,
    parse_service,
    pod_digest_of,
    revision_of,
    selector_text,
)
from dormouse_operator.model import Deployment, Key, Observed, Pod, Worker
from dormouse_operator.parse import parse_deployment, parse_pod
from dormouse_operator.rest import worker_at_rest
from dormouse_operator.workers import WorkerControl

_NOT_OURS = "it answers for another pod or other settings"

Fingerprint = frozenset[tuple[str, str]]  # (name, resource version) of the object and its pods


class Sighting(NamedTuple):
    """What was observed, and a mark by which a later list can tell whether it still holds."""

    observed: Observed
    fingerprint: Fingerprint


def fingerprint_of(objects: Iterable[Resource]) -> Fingerprint:
    """Return the mark of these objects in these versions."""
    return frozenset(
        (f"{obj['kind']}/{obj['metadata']['name']}", obj["metadata"]["resourceVersion"]) for obj in objects
    )


class Observer:
    """Makes Observed. Raises KubeError and SpecError; a worker that does not answer is an observation."""

    def __init__(
        self,
        kube: KubeApi,
        workers: WorkerControl,
        *,
        default_image: str,
        agreement_timeout_s: float,
        clock: Callable[[], datetime],
    ) -> None:
        """Take both worlds, and what Observed carries of the settings."""
        self._kube = kube
        self._workers = workers
        self._default_image = default_image
        self._agreement_timeout_s = agreement_timeout_s
        self._clock = clock

    async def observe(self, key: Key, refusals: Mapping[str, str]) -> Sighting | None:
        """Return what there is, None if the InferenceDeployment is gone. `refusals` are of the last actions."""
        raw = await self._kube.get(INFERENCE_DEPLOYMENTS, key.namespace, key.name)
        if raw is None:
            return None
        deployment = parse_deployment(raw)
        listed = await self._kube.list(PODS, key.namespace, label_selector=selector_text(key.name))
        service = await self._kube.get(SERVICES, key.namespace, key.name)
        budget = await self._kube.get(DISRUPTION_BUDGETS, key.namespace, key.name)
        pods = tuple(parse_pod(item) for item in listed.items)
        answers, unreachable = await self._ask_all(deployment, pods)
        workers, strangers = _sort_by_settings(pods, answers)
        image = choose_image(deployment, pods, self._default_image)
        observed = Observed(
            deployment=deployment,
            now=self._clock(),
            image=image,
            revision=revision_of(deployment, image),
            pods=pods,
            workers=workers,
            unreachable={**dict.fromkeys(strangers, _NOT_OURS), **unreachable},
            refusals=refusals,
            service=parse_service(service, deployment),
            budget=parse_budget(budget, deployment),
            agreement_timeout_s=self._agreement_timeout_s,
            pod_digest=pod_digest_of(deployment, image),
            strangers=strangers,
        )
        return Sighting(observed, fingerprint_of([raw, *listed.items]))

    async def _ask_all(self, deployment: Deployment, pods: tuple[Pod, ...]) -> tuple[dict[str, Worker], dict[str, str]]:
        """Return what is known of each worker, and why the others gave no answer; all are asked at once."""
        known = {pod.name: worker for pod in pods if (worker := worker_at_rest(deployment, pod))}
        asked = [pod for pod in pods if pod.can_be_asked and pod.name not in known]
        answers = await asyncio.gather(*(self._ask(pod) for pod in asked))
        unreachable: dict[str, str] = {}
        for pod, answer in zip(asked, answers, strict=True):
            if isinstance(answer, Worker):
                known[pod.name] = answer
            else:
                unreachable[pod.name] = answer
        return known, unreachable

    async def _ask(self, pod: Pod) -> Worker | str:
        """Return the worker's answer, or why there is none. One of another pod is none."""
        try:
            worker = await self._workers.get_status(pod.ip)
        except WorkerError as error:
            return str(error)
        return worker if worker.pod_uid == pod.uid else _NOT_OURS


def _sort_by_settings(
    pods: Iterable[Pod], answers: Mapping[str, Worker]
) -> tuple[dict[str, Worker], dict[str, Worker]]:
    """Return the answers of the engines that their pods' labels speak of, and those of others."""
    revisions = {pod.name: pod.revision for pod in pods}
    own = {name for name, worker in answers.items() if worker.settings_digest == revisions[name]}
    strangers = {name: worker for name, worker in answers.items() if name not in own}
    return {name: answers[name] for name in own}, strangers
