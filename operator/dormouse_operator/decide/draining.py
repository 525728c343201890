"""Whether a worker that was taken out of the Service has finished what it runs, or had the time to. Pure."""

from __future__ import annotations

from datetime import timedelta

from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Pod, WorkerState


def is_drained(situation: Situation, pod: Pod) -> bool:
    """Return whether nothing runs on the pod's worker and nothing new is let in."""
    worker = situation.worker(pod)
    return worker is not None and worker.state is not WorkerState.READY and worker.running_requests == 0


def is_late(situation: Situation, pod: Pod) -> bool:
    """Return whether requests had the time that they may take to end, counted from when the gate was shut."""
    limit = timedelta(seconds=situation.deployment.lifecycle.drain_timeout_s)
    return not pod.gate_open and pod.gate_since is not None and situation.now >= pod.gate_since + limit
