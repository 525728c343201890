"""BlocksAgreed: it is settled how many blocks every replica holds. Pure."""

from __future__ import annotations

from dormouse_operator import capacity
from dormouse_operator.conditions.ladder import holds, no_replicas, not_yet, unknown
from dormouse_operator.model import Condition, Observed

TYPE = capacity.BLOCKS_AGREED


def evaluate(observed: Observed) -> Condition:
    """See the module. The flip to WaitingForReports starts the clock of the wait."""
    if off := no_replicas(TYPE, observed):
        return off
    counting = capacity.reports(observed)
    if not counting:
        return unknown(TYPE, "NoReports", "no worker has reported its blocks")
    agreement = capacity.agree(observed)
    if agreement is None:
        awaited = ", ".join(pod.name for pod in capacity.missing(observed))
        words = f"{len(counting)} of {len(observed.replicas)} workers have reported; waiting for {awaited}"
        return not_yet(TYPE, capacity.WAITING_FOR_REPORTS, f"{words}, at most {observed.agreement_timeout_s:g} s")
    return holds(TYPE, "Agreed", f"blocks agreed: {agreement}")
