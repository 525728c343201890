"""What to do next: Situation → actions. Pure, stores nothing; after a crash it gives the same answer.

Each pass plans at most one step per replica, and every step can be repeated without harm:

    no pod:          create → (it loads and profiles) → the count is agreed → initialise the cache → open the gate
    to sleep:        close the gate → drain → all replicas sleep together     (by order, or as `sleep_ladder` decides)
    to wake:         wake up → open the gate
    not wanted:      close the gate → endpoints gone → drain → delete        (`rollout`, which decides how many at once)
    parked:          create → in STANDBY until its replica is wanted          (`parking`)
    of several pods: make the followers, end all when one is gone            (`groups`; all else is the leader's)

What makes it hard: (1) a worker that serves must not lose its requests because a newcomer reported less: such workers
are taken out of the Service one at a time, and re-initialised when idle. (2) names of pods are deterministic, so a new
pod has to wait until its predecessor is gone. (3) whoever sleeps holds no cache, yet its count still binds the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from dormouse_operator.decide import (
    adapters,
    block_agreement,
    children,
    groups,
    memory_requests,
    parking,
    pre_pull,
    sleep,
)
from dormouse_operator.decide.actions import Action, Plan, Requeue, pods_of
from dormouse_operator.decide.block_agreement import Blocks
from dormouse_operator.decide.findings import Findings
from dormouse_operator.decide.replica import next_step
from dormouse_operator.decide.rollout import plan as rollout
from dormouse_operator.decide.rollout.inventory import Standing, next_patience
from dormouse_operator.decide.rollout.stall import is_complete, progress_ends
from dormouse_operator.decide.situation import STUCK_AFTER, Situation
from dormouse_operator.model import Pod, WorkerState

_CHANGING = {
    WorkerState.STARTING,
    WorkerState.LOADING,
    WorkerState.INITIALIZING,
    WorkerState.DRAINING,
    WorkerState.WAKING,
}

DOWNLOAD_PERIOD = timedelta(seconds=5)


def plan(situation: Situation, findings: Findings) -> Plan:
    """Return what to do now. A deployment that is not accepted, or is being deleted, is left as it is."""
    if situation.deployment.is_deleting or findings.rejection:
        return Plan()
    standing, stop = findings.standing, findings.stall
    exchange = [*rollout.plan(situation, standing, stop), *groups.steps(situation, standing.new)]
    busy = {pod.name for action in exchange for pod in pods_of(action)}
    guards = (
        *children.disruption_budget(situation),
        *children.network_policy(situation),
        *children.inference_pool(situation),
        *pre_pull.steps(situation),
    )
    actions: list[Action] = [*children.services(situation), *guards, *exchange]
    actions += _steps(situation, findings.blocks, [pod for pod in standing.new if pod.name not in busy])
    actions += adapters.steps(situation, [pod for pod in standing.new if pod.name not in busy])
    for view, pods in rollout.older(situation, standing, stop):
        actions += _steps(view, block_agreement.blocks_of(view), [pod for pod in pods if pod.name not in busy])
    actions += sleep.steps(situation)
    actions += parking.steps(situation, standing)
    actions += memory_requests.steps(situation)
    return Plan(tuple(actions), _requeue(situation, findings))


def _steps(view: Situation, blocks: Blocks, pods: Sequence[Pod]) -> list[Action]:
    """Return the next step of each replica of one revision, given its blocks."""
    steps = (next_step(view, pod, blocks) for pod in pods)
    return [step for step in steps if step]


def _requeue(situation: Situation, findings: Findings) -> Requeue:
    """Return when to look again. Changes of pods are told by the watch; what a worker does by itself is not."""
    asked = [pod for pod in situation.pods if pod.can_be_asked and pod.owner_uid == situation.deployment.uid]
    polls = any(situation.state(pod) in _CHANGING or situation.state(pod) is None for pod in asked)
    times = (
        _waiting_ends(situation, findings.blocks),
        _progress_ends(situation, findings.standing),
        next_patience(situation, findings.standing),
        groups.next_deadline(situation),
        situation.ladder_due,
        _next_stuck(situation),
        _next_progress(situation),
        adapters.next_question(situation),
    )
    ends = [end for end in times if end]
    return Requeue(polls, max(0.0, (min(ends) - situation.now).total_seconds()) if ends else None)


def _waiting_ends(situation: Situation, blocks: Blocks) -> datetime | None:
    """Return until when reports are waited for, None if they are not."""
    is_waiting = blocks.agreement is None and blocks.reports
    return block_agreement.waiting_ends(situation) if is_waiting else None


def _progress_ends(situation: Situation, standing: Standing) -> datetime | None:
    """Return when a roll-out that does not move has failed, None if there is none or it is over."""
    if is_complete(situation, standing):
        return None
    ends = progress_ends(situation, standing)
    return ends if ends > situation.now else None


def _next_stuck(situation: Situation) -> datetime | None:
    """Return when the next pod that is being deleted is to be called stuck."""
    times = [pod.ends_by + STUCK_AFTER for pod in situation.pods if pod.ends_by and not situation.is_stuck(pod)]
    return min(times, default=None)


def _next_progress(situation: Situation) -> datetime | None:
    """Return when a download is to be asked again how far it is, None where there is none."""
    everybody = (pod for leader in situation.replicas for pod in situation.group(leader).members)
    return situation.now + DOWNLOAD_PERIOD if any(pod.is_downloading for pod in everybody) else None
