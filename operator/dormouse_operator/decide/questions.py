"""What has to be found out before a pass can be decided: whose pods they are, whom to ask, what to look for. Pure.

Who is asked depends on the ladder: a worker at rest is believed as recorded, unless its deployment is to fall asleep.
Then what workers say may change the ladder, which `settle` sees to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dormouse_operator.decide import sleep_evidence, sleep_ladder
from dormouse_operator.decide.condemned import by_key
from dormouse_operator.decide.made import sort_out
from dormouse_operator.decide.release import Release
from dormouse_operator.decide.settled_workers import worker_at_rest
from dormouse_operator.decide.sleep_evidence import Evidence
from dormouse_operator.decide.sleep_ladder import Decision
from dormouse_operator.model import Condemnation, Deployment, Group, Observed, Pod, Rung, Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What is to be asked, and what is known before anybody was."""

    pods: tuple[Pod, ...]  # those observed; none that only says it is the deployment's has its UID as owner's
    asked: tuple[Pod, ...]  # whose workers are asked
    fetching: tuple[Pod, ...]  # whose init containers are asked how far they are
    at_rest: Mapping[str, Worker]  # by pod name: known without asking
    unknowing: Mapping[str, Condemnation]  # by pod name: whose workers cannot know this operator; they are not asked
    evidence: Evidence  # for a rung of the ladder
    decision: Decision  # on that evidence
    looks_for_budget: bool  # a disruption budget that no watch tells of may stand in the way

    @property
    def may_be_stirred(self) -> bool:
        """Return whether a request that a worker tells of would change where the deployment is on the ladder."""
        return self.decision.rung is not Rung.ACTIVE


def questions_of(observed: Observed, release: Release) -> Questions:
    """Return what to ask, given all that was observed but workers' answers."""
    deployment = observed.deployment
    pods = sort_out(deployment, observed.pods, release.seals, made=observed.made)
    evidence = sleep_evidence.gather(
        deployment,
        observed.activity,
        observed.now,
        pods=pods,
        pressed_to=observed.pressure.level if observed.pressure else 0,
        turn=observed.turn,
        wanted_ago_s=observed.wanted_ago_s,
    )
    decision = sleep_ladder.decide(evidence)
    own = own_pods(deployment, pods)
    unknowing = by_key(own, release.operator_keys)
    knowing = [pod for pod in own if pod.name not in unknowing]
    at_rest = _at_rest(observed, knowing) if decision.rung is Rung.ACTIVE else {}
    asked = tuple(pod for pod in knowing if pod.can_be_asked and pod.name not in at_rest)
    return Questions(
        pods=pods,
        asked=asked,
        fetching=tuple(_fetching(observed, own)),
        at_rest=at_rest,
        unknowing=unknowing,
        evidence=evidence,
        decision=decision,
        looks_for_budget=_most_replicas(deployment, decision, asked) > 1,
    )


def own_pods(deployment: Deployment, pods: Iterable[Pod]) -> list[Pod]:
    """Return the deployment's own pods that still may run."""
    return [pod for pod in pods if pod.owner_uid == deployment.uid and not pod.has_ended]


def _fetching(observed: Observed, leaders: Iterable[Pod]) -> Iterator[Pod]:
    """Yield the pods that fetch the model: leaders and their followers."""
    for leader in leaders:
        group = Group(leader, observed.followers.get(leader.uid, ()))
        yield from (pod for pod in group.members if pod.is_downloading)


def _at_rest(observed: Observed, pods: Iterable[Pod]) -> dict[str, Worker]:
    """Return the workers at rest, by pod name. Who refused a command is not as it was recorded."""
    known = ((pod, worker_at_rest(observed.deployment, pod)) for pod in pods if pod.name not in observed.refusals)
    return {pod.name: worker for pod, worker in known if worker}


def _most_replicas(deployment: Deployment, decision: Decision, asked: tuple[Pod, ...]) -> int:
    """Return how many replicas may be wanted once workers have answered: one that tells of a request wakes all."""
    may_wake = decision.rung is not Rung.ACTIVE and bool(asked)
    return deployment.replicas if may_wake else decision.num_present(deployment.replicas)
