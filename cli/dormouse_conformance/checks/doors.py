"""Who may call what."""

from __future__ import annotations

from functools import partial

import grpc

from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_conformance.findings import require, require_refusal
from dormouse_conformance.rules import Rule, Section
from dormouse_conformance.subject import Subject, told

DENIED = grpc.StatusCode.PERMISSION_DENIED


def _operator(worker: Subject) -> None:
    worker.ready()
    for method in ("GetStatus", "Drain"):
        require_refusal(partial(worker.command, method, proof=()), DENIED, what=f"{method} without a ticket")
    status = worker.status()
    require(status.state == control.WORKER_STATE_READY, "READY, as before", told(status))


def _role(worker: Subject) -> None:
    require_refusal(
        lambda: worker.command("GetStatus", proof=worker.to_gateway), DENIED, what="GetStatus with a gateway's ticket"
    )


def _audience(worker: Subject) -> None:
    strange = worker.target.operator.proof(f"not-{worker.target.pod_uid}")
    require_refusal(
        lambda: worker.command("GetStatus", proof=strange), DENIED, what="GetStatus with another pod's ticket"
    )


def _health(worker: Subject) -> None:
    worker.ready()
    require(worker.is_serving(), "SERVING in READY", "NOT_SERVING")
    worker.command("Drain")
    require(not worker.is_serving(), "NOT_SERVING in DRAINING", "SERVING")


SECTION = Section(
    "doors",
    "Two ports: `Inference`, gRPC's `Health` and, if claimed, `Relay` on one; `WorkerControl` on the other. Roles are "
    "proved by tickets in the metadata `dormouse-ticket`, signed by Ed25519 keys whose public parts the "
    "worker is started with (`DORMOUSE_OPERATOR_KEY`, `DORMOUSE_GATEWAY_KEY`) and made out to its pod's "
    "UID (`DORMOUSE_POD_UID`).",
    (
        Rule(
            "operator",
            "Every method of `WorkerControl` needs an operator's ticket: without one it is PERMISSION_DENIED and "
            "changes nothing.",
            _operator,
        ),
        Rule("role", "A gateway's ticket opens none of them.", _role),
        Rule("audience", "Nor does a ticket that is made out to another pod.", _audience),
        Rule(
            "health",
            "The health of `dormouse.v1.Inference` is SERVING in READY and NOT_SERVING in every other state.",
            _health,
        ),
    ),
)
