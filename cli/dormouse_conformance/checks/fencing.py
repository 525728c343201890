"""Epochs: an operator that lost its lease changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import grpc

from dormouse_api.limits import MAX_EPOCH
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_conformance.findings import require, require_equal, require_refusal
from dormouse_conformance.rules import Rule, Section
from dormouse_conformance.subject import Subject, told

OLDER = grpc.StatusCode.FAILED_PRECONDITION
# What a worker in READY obeys in our own epoch.
COMMANDS: Mapping[str, Mapping[str, Any]] = {
    "DetermineNumAvailableBlocks": {},
    "Drain": {},
    "PrepareSleep": {"level": 1},
    "Sleep": {"level": 3},
    "PrepareWakeUp": {},
    "WakeUp": {},
    "ResetPrefixCache": {},
}


def _highest(worker: Subject) -> None:
    worker.ready()
    worker.epoch += 5
    _tell(worker)
    require_equal("WorkerStatus.epoch", worker.epoch, worker.status().epoch)


def _older(worker: Subject) -> None:
    worker.ready()
    worker.epoch += 1
    _tell(worker)
    require_refusal(lambda: worker.command("Drain", epoch=worker.epoch - 1), OLDER, what="Drain in an older epoch")
    status = worker.status()
    require(status.state == control.WORKER_STATE_READY, "READY, as before", told(status))


def _every(worker: Subject) -> None:
    count = worker.ready().num_gpu_blocks
    worker.epoch += 1
    _tell(worker)
    older = worker.epoch - 1
    for method, fields in {**COMMANDS, "InitializeCache": {"num_gpu_blocks": count}}.items():
        if method == "Drain":  # a rule of its own
            continue
        give = partial(worker.command, method, epoch=older, **fields)
        require_refusal(give, OLDER, what=f"{method} in an older epoch")


def _equal(worker: Subject) -> None:
    worker.ready()
    _tell(worker)
    _tell(worker)


def _refused(worker: Subject) -> None:
    worker.ready()
    worker.epoch += 1
    require_refusal(
        lambda: worker.command("Sleep", level=9), grpc.StatusCode.INVALID_ARGUMENT, OLDER, what="Sleep with level 9"
    )
    require_refusal(lambda: _tell(worker, worker.epoch - 1), OLDER, what="a command in the epoch before")


def _range(worker: Subject) -> None:
    worker.ready()
    require_refusal(
        lambda: _tell(worker, MAX_EPOCH + 1),
        grpc.StatusCode.INVALID_ARGUMENT,
        what=f"an epoch of {MAX_EPOCH + 1}",
    )


def _asleep(worker: Subject) -> None:
    worker.asleep()
    require_refusal(lambda: worker.command("WakeUp", epoch=worker.epoch - 1), OLDER, what="WakeUp in an older epoch")


def _tell(worker: Subject, epoch: int | None = None) -> None:
    """Give a command that is obeyed in every state, in our epoch unless another is said."""
    worker.command("ResetPrefixCache", epoch=worker.epoch if epoch is None else epoch)


SECTION = Section(
    "fencing",
    "Every command carries the epoch of the operator that gives it, which grows whenever another operator leads.",
    (
        Rule(
            "highest", "A worker remembers the highest epoch that it has seen; `WorkerStatus.epoch` tells it.", _highest
        ),
        Rule("older", "A command in an older epoch is FAILED_PRECONDITION and changes nothing.", _older),
        Rule("every", "So is each of the commands, also one that would change nothing.", _every),
        Rule("equal", "A command in the same epoch is obeyed.", _equal),
        Rule("refused", "A command that is refused for another reason has told its epoch all the same.", _refused),
        Rule("range", f"An epoch above {MAX_EPOCH} is INVALID_ARGUMENT: nobody could outrank it.", _range),
        Rule("asleep", "A sleep forgets no epoch.", _asleep),
    ),
)
