"""Who else writes the replicas of a deployment that the operator scales. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from dormouse_operator.model import Deployment, ScaleWriter

SCALER = "dormouse-scaler"  # the operator's field manager for the scale, apart from its own
STANDS_BACK = timedelta(minutes=10)  # behind another writer: two that answer each other would never rest
_BY_HAND = "kubectl"  # people are no rivals: their number is where the operator goes on from


def rival_of(deployment: Deployment, now: datetime) -> ScaleWriter | None:
    """Return the program that set `replicas` lately though the operator is to; None if there is none."""
    writer = deployment.scaled_by
    if deployment.scaling is None or writer is None or writer.manager == SCALER or writer.manager.startswith(_BY_HAND):
        return None
    return writer if now < writer.at + STANDS_BACK else None
