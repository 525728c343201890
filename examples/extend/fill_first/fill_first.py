"""A router policy: fills one worker before the next gets anything, so that the others stay idle.

Installed beside the gateway (`pip install ./fill_first`), it is chosen with `--router-policy=fill-first`.
"""

from __future__ import annotations

from collections.abc import Sequence

from dormouse_gateway.routing.policy import Choice, Demand, PolicyOptions, Worker

FULL_TOKENS = 8192


class FillFirst:
    """Gives to the busiest worker that is not full, to the least busy one where all are."""

    def __init__(self, options: PolicyOptions) -> None:
        """Take the gateway's settings for policies, of which it needs none."""
        del options

    def choose(self, demand: Demand, workers: Sequence[Worker]) -> Choice:
        """See `RouterPolicy`. Ties go to the first by name, so that all gateways fill the same one."""
        by_name = sorted(workers, key=lambda worker: worker.name)
        fitting = [worker for worker in by_name if worker.tokens + demand.tokens <= FULL_TOKENS]
        if fitting:
            return Choice(max(fitting, key=lambda worker: worker.tokens))
        return Choice(min(by_name, key=lambda worker: worker.tokens))
