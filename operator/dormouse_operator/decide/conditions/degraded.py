"""Degraded: somebody has to act. Repeats the first failure of the others, so that one look is enough. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from dormouse_api.short_names import REASON
from dormouse_operator.decide.conditions.verdicts import failed, not_yet
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Condition, Contest
from dormouse_operator.parse import format_time

TYPE = "Degraded"
NO_TURNS = "NoTurns"
MOST_RIVALS = 2  # writes of replicas that another one writes: a person's two in a quarter of an hour are no quarrel
_FREE = (
    "another takes its place. If its node will not come back: kubectl taint node NODE "
    "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
)


def evaluate(situation: Situation, others: Iterable[Condition]) -> Condition:
    """See the module. `others` are the conditions that were evaluated before."""
    if situation.observed.forbidden:
        return _is(failed(TYPE, "Forbidden", f"the API server does not allow it: {situation.observed.forbidden}"))
    if worst := next((situation.condemned[name] for name in sorted(situation.condemned)), None):
        return _is(failed(TYPE, worst.reason, worst.message))
    if refusing := min(situation.observed.refusing, default=""):
        words = f"pod {refusing} takes no orders: {situation.observed.refusing[refusing]}"
        return _is(failed(TYPE, "CredentialRefused", words))
    if failure := next((condition for condition in others if condition.is_failure), None):
        return _is(failed(TYPE, failure.reason, failure.message))
    if stuck := _stuck_pod(situation):
        return _is(failed(TYPE, "PodStuck", stuck))
    return _of_others(situation) or not_yet(TYPE, "AsExpected", "nothing needs attention")


def _of_others(situation: Situation) -> Condition | None:
    """Tell of what somebody else did, or has; None if there is nothing of the kind."""
    seen, key = situation.observed, situation.deployment.key
    if seen.dropped:
        words = f"the API server does not keep status.{', status.'.join(seen.dropped)}: its definition of"
        cure = "apply the one of this release: kubectl apply --server-side -f crds/"
        return _is(
            failed(TYPE, "DefinitionOutdated", f"{words} InferenceDeployment is older than this operator; {cure}")
        )
    if situation.unmade:
        words = f"pod {min(situation.unmade)} names this object as its owner, and no operator made it"
        return _is(
            failed(TYPE, "ForeignPod", f"{words}: it is not asked, no request is to go there, and it is deleted")
        )
    if situation.release.arrows and situation.policy and not situation.policy.is_ours:
        words = f"a NetworkPolicy {key.name} exists that does not belong to this object; the operator's own is missing"
        return _is(failed(TYPE, "PolicyNameTaken", f"{words}; remove it or choose another name"))
    if situation.deployment.serving.inference_pool and (words := _poolless(situation)):
        return _is(failed(TYPE, "NoInferencePool", f"spec.serving.inferencePool is true, but {words}"))
    if seen.turn and seen.turn.complaint:
        words = f"{seen.turn.shares}, and they do not fit beside each other; no turns are taken"
        return _is(failed(TYPE, NO_TURNS, f"{words}, because {seen.turn.complaint}"))
    if words := _contest(seen.contest):
        return _is(failed(TYPE, "ReplicasContested", words))
    if seen.foreign:
        words = f"pod {min(seen.foreign)} has the labels of a worker and belongs to no InferenceDeployment"
        return _is(failed(TYPE, "ForeignPod", f"{words}: it is not asked, and no request is to go there"))
    if seen.name_owner:
        name = situation.deployment.model.served_name
        words = f"{seen.name_owner} has the model name {name!r}, or had it until lately; this one answers to {key} only"
        return _is(failed(TYPE, REASON, f"{words}. Set another spec.model.name"))
    return None


def _contest(contest: Contest) -> str:
    """Say who writes replicas that others write, too; "" where that is no quarrel."""
    if not contest.writers:  # they are ours to write
        words = f"somebody else wrote spec.replicas {contest.num_writes} times in 15 minutes, and spec.scaling is set"
        return f"{words}; remove it, or the other autoscaler" if contest.num_writes > MOST_RIVALS else ""
    if contest.num_writes <= 2 * MOST_RIVALS:  # the writes of both are counted
        return ""
    *others, last = contest.writers
    words = f"{', '.join(others)} and {last} wrote spec.replicas over each other {contest.num_writes} times"
    return f"{words} in 15 minutes; let one of them write (a HorizontalPodAutoscaler is kube-controller-manager)"


def _poolless(situation: Situation) -> str:
    """Say why there is no InferencePool of ours, "" if nothing is in its way."""
    seen, pool = situation.observed.inference_pool, situation.inference_pool
    picker = situation.release.picker
    if picker is None:
        return "no gateway of this release is asked for endpoints: install it with gateway.picker.enabled=true"
    if seen and not seen.is_known_kind:
        return (
            "the cluster does not know inferencepools.inference.networking.k8s.io: install the Gateway API's extension"
        )
    if seen and seen.address == "":
        return f"Service {picker.namespace}/{picker.service}, which leads to the picker, has no cluster IP"
    if pool and not pool.is_ours:
        return f"an InferencePool {situation.deployment.key.name} exists that does not belong to this object; remove it"
    return ""


def _stuck_pod(situation: Situation) -> str:
    """Name a pod that does not end, and what helps; "" if there is none."""
    late = ((pod.name, pod.ends_by) for pod in situation.pods if pod.ends_by and situation.is_stuck(pod))
    return next((f"pod {name} was to be gone by {format_time(end)}; {_FREE}" for name, end in late), "")


def _is(condition: Condition) -> Condition:
    """Return it as holding: this condition is the only one that is bad when True."""
    return Condition(condition.type, "True", condition.reason, condition.message, is_failure=True)
