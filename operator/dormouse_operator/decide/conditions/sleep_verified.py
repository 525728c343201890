"""SleepVerified: what sleeps has really given its memory back, as measured. Pure."""

from __future__ import annotations

from dormouse_operator.decide.conditions.verdicts import failed, holds, unknown
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Condition, WorkerState

TYPE = "SleepVerified"
RESIDUE_LIMIT_BYTES = (
    2 * 2**30
)  # of each rank: a CUDA context with graphs keeps about 1 GiB, an interpreter with torch about half


def evaluate(situation: Situation) -> Condition:
    """See the module."""
    sleeping = [
        (pod, situation.workers[pod.name]) for pod in situation.replicas if situation.state(pod) is WorkerState.ASLEEP
    ]
    if not sleeping:
        return unknown(TYPE, "Awake", "no worker is asleep")
    pod, worker = max(sleeping, key=lambda entry: entry[1].residual_bytes)
    allowed_bytes = RESIDUE_LIMIT_BYTES * pod.num_ranks
    residue = f"{worker.residual_bytes / 2**30:.2f} GiB"
    limit = f"{allowed_bytes / 2**30:g} GiB"
    if worker.residual_bytes > allowed_bytes:
        words = f"pod {pod.name} still holds {residue} asleep, {limit} are expected at most"
        return failed(TYPE, "ResidualTooHigh", f"{words}; restart it by deleting the pod, and report its log")
    return holds(TYPE, "Verified", f"at most {residue} stay in use, on pod {pod.name}; {limit} are allowed")
