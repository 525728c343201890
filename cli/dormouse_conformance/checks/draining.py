"""A worker that lets nobody in any more."""

from __future__ import annotations

import grpc

from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_conformance.findings import require, require_equal, require_unavailable
from dormouse_conformance.rules import Rule, Section
from dormouse_conformance.subject import Subject, told

BRIEF_S = 0.05  # a deadline of a drain that comes while a long stream runs
OK = grpc.StatusCode.OK


def _refuses(worker: Subject) -> None:
    worker.ready()
    worker.command("Drain")
    require_unavailable(lambda: worker.generate(worker.request()), "Generate while draining")


def _finishes(worker: Subject) -> None:
    worker.ready()
    with worker.running() as stream:
        worker.command("Drain", timeout_seconds=BRIEF_S)
        answer = stream.rest()
    require_equal("the tokens of what ran", worker.long_tokens, len(answer.tokens()))


def _remaining(worker: Subject) -> None:
    worker.ready()
    with worker.running():
        left = worker.command("Drain", timeout_seconds=BRIEF_S).remaining_requests
        worker.command("WakeUp")
    require_equal("remaining_requests at the deadline", 1, left)


def _waits(worker: Subject) -> None:
    worker.ready()
    with worker.running() as stream:
        left = worker.command("Drain", timeout_seconds=worker.target.patience_s).remaining_requests
        running = worker.status().running_requests
        stream.rest()
    require_equal("remaining_requests, and running_requests after it", (0, 0), (left, running))


def _reopens(worker: Subject) -> None:
    worker.ready()
    worker.command("Drain")
    status = worker.command("WakeUp")
    require(status.state == control.WORKER_STATE_READY, "READY", told(status))
    worker.generate(worker.request(max_tokens=1))


SECTION = Section(
    "draining",
    "`Drain` closes the worker. It stays closed, whatever ends, until `WakeUp` or a sleep.",
    (
        Rule("refuses", "While it drains new requests are UNAVAILABLE, with RetryInfo.", _refuses),
        Rule("finishes", "What runs is served to its end.", _finishes),
        Rule("remaining", "At its deadline `Drain` answers how many requests are left.", _remaining),
        Rule("waits", "Before it, it answers when none is left.", _waits),
        Rule("reopens", "`WakeUp` ends a drain.", _reopens),
    ),
)
