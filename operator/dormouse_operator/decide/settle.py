"""From what was observed to what it comes to: whose words count, the ladder, how many replicas, which revision. Pure.

The ladder was asked in `questions`; it is asked again only where a worker tells of a request that nobody knew of, or
that it lacks a level of sleep.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from dormouse_operator.decide import sleep_evidence, sleep_ladder, sleep_levels, spare_replicas
from dormouse_operator.decide.condemned import by_epoch, outdated_images
from dormouse_operator.decide.membership import is_released, resting
from dormouse_operator.decide.questions import Questions, own_pods
from dormouse_operator.decide.release import Release
from dormouse_operator.decide.situation import Situation, parked_places
from dormouse_operator.decide.sleep_ladder import Decision
from dormouse_operator.manifests import (
    choose_image,
    parse_budget,
    parse_inference_pool,
    parse_policy,
    parse_pre_pull,
    parse_ranks_service,
    parse_service,
    pod_digest_of,
    revision_of,
)
from dormouse_operator.model import Condemnation, Observed, Worker

_NOT_OURS = "it answers for another pod or other settings"


class _Heard(NamedTuple):
    """Workers by pod name, by what their words are worth."""

    workers: dict[str, Worker]  # they count
    strangers: dict[str, Worker]  # engines of other settings than their pods are labelled with
    condemned: dict[str, Condemnation]
    unreachable: dict[str, str]  # why others are not heard


def settle(observed: Observed, questions: Questions, release: Release) -> Situation:
    """Return the situation. `questions` are those that were asked of this very deployment."""
    deployment, heard = observed.deployment, _hear(observed, questions)
    decision = _ladder(observed, questions, heard.workers)
    is_away = is_released(deployment, observed.pool)
    wanted_replicas = 0 if is_away else decision.num_present(deployment.replicas)
    own = own_pods(deployment, questions.pods)
    parked = parked_places(deployment, wanted_replicas)
    alone = [pod for pod in own if not pod.pool and pod.index not in parked]
    spares = spare_replicas.choose(decision.ladder, alone, heard.workers, observed.refusals)
    spares |= resting(deployment, observed.pool, own, heard.workers)
    outdated = outdated_images(own, observed.refusing, release.operator_keys)
    image = choose_image(deployment, questions.pods, release.default_image, outdated=outdated)
    return Situation(
        observed=observed,
        release=release,
        image=image,
        revision=revision_of(deployment, image),
        pod_digest=pod_digest_of(deployment, image),
        pods=questions.pods,
        workers=heard.workers,
        strangers=heard.strangers,
        condemned=heard.condemned,
        unreachable=heard.unreachable,
        ladder=decision.ladder,
        ladder_due=decision.due,
        wanted_replicas=wanted_replicas,
        spares=spares,
        service=parse_service(observed.service, deployment),
        ranks_service=parse_ranks_service(observed.ranks_service, deployment),
        budget=parse_budget(observed.budget, deployment, wanted_replicas, num_spares=len(spares)),
        inference_pool=parse_inference_pool(observed.inference_pool, deployment, release.picker),
        pre_pull=parse_pre_pull(observed.pre_pull, deployment, image),
        policy=parse_policy(observed.policy, deployment, release.arrows, questions.pods),
    )


def _hear(observed: Observed, questions: Questions) -> _Heard:
    """Return whose words count: those of this pod's worker, of the settings on its label, under a possible epoch."""
    uids = {pod.name: pod.uid for pod in questions.asked}
    told = {name: worker for name, worker in observed.answers.items() if worker.pod_uid == uids[name]}
    known = {**questions.at_rest, **told}
    condemned = {**questions.unknowing, **by_epoch(known, now=observed.now, epoch=observed.epoch)}
    workers, strangers = _sort_by_settings(questions, known, condemned)
    others = dict.fromkeys([*strangers, *(name for name in observed.answers if name not in told)], _NOT_OURS)
    return _Heard(workers, strangers, condemned, {**others, **observed.unreachable})


def _sort_by_settings(
    questions: Questions, known: Mapping[str, Worker], condemned: Collection[str]
) -> tuple[dict[str, Worker], dict[str, Worker]]:
    """Return the engines that their pods' labels speak of, and those of others; those condemned are in neither."""
    revisions = {pod.name: pod.revision for pod in questions.pods}
    heard = {name: worker for name, worker in known.items() if name not in condemned}
    strangers = {name: worker for name, worker in heard.items() if worker.settings_digest != revisions[name]}
    return {name: worker for name, worker in heard.items() if name not in strangers}, strangers


def _ladder(observed: Observed, questions: Questions, workers: Mapping[str, Worker]) -> Decision:
    """Return where the deployment should be on the ladder, now that workers have been heard."""
    recorded, unclaimed = observed.deployment.recorded, sleep_levels.unclaimed(workers.values())
    is_stirred = questions.may_be_stirred and sleep_evidence.has_new_requests(recorded, workers)
    if not is_stirred and not unclaimed:
        return questions.decision
    return sleep_ladder.decide(replace(questions.evidence, is_stirred=is_stirred, unclaimed=unclaimed))
