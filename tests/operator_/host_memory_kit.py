"""Deployments that sleep and keep host memory."""

from __future__ import annotations

from datetime import timedelta

from dormouse_operator.model import (
    Ladder,
    RecordedStatus,
    Rung,
    WorkerState,
)
from dormouse_operator.model.units import GIB
from dormouse_operator.testing.nouns import NOW, a_deployment, a_pod, a_situation, a_worker

ASLEEP = WorkerState.ASLEEP
LEVEL1 = Ladder(rung=Rung.LEVEL1, since=NOW, reason="idle", idle_since=NOW - timedelta(seconds=600))


def sleeping(*gib, level=1, ladder=LEVEL1, recorded=None, **fields):
    workers = [a_worker(ASLEEP, sleep_level=level, host_copy_bytes=size * GIB) for size in gib]
    pods = tuple(a_pod(place, node=f"node-{place}") for place in range(len(gib)))
    deployment = a_deployment(replicas=len(gib), recorded=recorded or RecordedStatus(), **fields)
    return a_situation(*workers, deployment=deployment, pods=pods, ladder=ladder)
