"""Where a worker is in its life, and how it says so."""

from __future__ import annotations

import math

import grpc

from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_conformance.findings import Missed, require, require_equal, require_refusal
from dormouse_conformance.rules import Rule, Section
from dormouse_conformance.subject import Subject, told


def _wrong_state(worker: Subject) -> None:
    worker.ready()
    worker.command("Drain")
    require_refusal(
        lambda: worker.command("PrepareWakeUp"),
        grpc.StatusCode.FAILED_PRECONDITION,
        what="PrepareWakeUp while draining",
        naming=("draining",),
    )
    status = worker.status()
    require(status.state == control.WORKER_STATE_DRAINING, "DRAINING, as before", told(status))


def _identity(worker: Subject) -> None:
    first = worker.ready()
    worker.command("Drain")
    draining = worker.status()
    require_equal("pod_uid", worker.target.pod_uid, first.pod_uid)
    require(first.instance, "an instance", "none")
    require_equal("pod_uid and instance", (first.pod_uid, first.instance), (draining.pod_uid, draining.instance))


def _watch(worker: Subject) -> None:
    worker.ready()
    with worker.watching("WatchStatus") as told_statuses:
        first = next(told_statuses, None)
        require(first and first.state == control.WORKER_STATE_READY, "the present status first: READY", first)
        worker.command("Drain")
        for status in told_statuses:
            if status.state == control.WORKER_STATE_DRAINING:
                return
    raise Missed("a status DRAINING", "the stream's end")


def _load(worker: Subject) -> None:
    worker.ready()
    with worker.watching("WatchLoad") as loads:
        first = next(loads, None)
        require(first and first.ready and not first.draining, "the present load first: ready, not draining", first)
        worker.command("Drain")
        for load in loads:
            if load.draining and not load.ready:
                return
    raise Missed("a load that is draining and not ready", "the stream's end")


def _health(worker: Subject) -> None:
    worker.ready()
    seconds = worker.command("CheckHealth").seconds_since_step
    require(math.isfinite(seconds) and seconds >= 0, "seconds_since_step >= 0", seconds)


SECTION = Section(
    "life",
    "`STARTING → LOADING → PROFILED → INITIALIZING → READY ⇄ DRAINING → ASLEEP → WAKING → READY`; FAILED "
    "from anywhere. `GetStatus` answers at once in every state. A command that asks for what already "
    "holds succeeds and changes nothing.",
    (
        Rule(
            "wrong-state",
            "A command that the state does not allow is FAILED_PRECONDITION, names the state, and changes nothing.",
            _wrong_state,
        ),
        Rule("identity", "`pod_uid` and `instance` stay the same as long as the process.", _identity),
        Rule("watch", "`WatchStatus` tells the present status at once, and then every change of state.", _watch),
        Rule(
            "load",
            "`WatchLoad` tells the present load at once, and then every change: `ready` is true exactly in READY, "
            "`draining` in DRAINING.",
            _load,
        ),
        Rule("health", "`CheckHealth` succeeds in READY.", _health),
    ),
)
