"""SleepVerified: what sleeps has really given its memory back, as measured. Pure."""

from __future__ import annotations

from dormouse_operator.decide.conditions.verdicts import failed, holds, unknown
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import AT_REST, Condition
from dormouse_operator.model.units import GIB, ROUND, in_gib

TYPE = "SleepVerified"
# of each rank: a CUDA context with graphs keeps about 1 GiB, an interpreter with torch about half
RESIDUE_LIMIT_BYTES = 2 * GIB


def evaluate(situation: Situation) -> Condition:
    """See the module."""
    sleeping = [(pod, situation.workers[pod.name]) for pod in situation.replicas if situation.state(pod) in AT_REST]
    if not sleeping:
        return unknown(TYPE, "Awake", "no worker is asleep")
    pod, worker = max(sleeping, key=lambda entry: entry[1].residual_bytes)
    allowed_bytes = RESIDUE_LIMIT_BYTES * pod.num_ranks
    residue = in_gib(worker.residual_bytes)
    limit = in_gib(allowed_bytes, ROUND)
    if worker.residual_bytes > allowed_bytes:
        words = f"pod {pod.name} still holds {residue} asleep, {limit} are expected at most"
        return failed(TYPE, "ResidualTooHigh", f"{words}; restart it by deleting the pod, and report its log")
    return holds(TYPE, "Verified", f"at most {residue} stay in use, on pod {pod.name}; {limit} are allowed")
