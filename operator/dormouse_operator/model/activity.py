"""What goes on at a deployment, as all gateways together see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """One deployment at one moment. Where any gateway is not heard of there is none: unknown is not idle."""

    in_flight: int  # requests that gateways serve, held ones included
    held: int  # of these, the ones that wait for a worker
    quiet_s: float  # for at least so long no request arrived or ended; 0 while any is unfinished
    awake_workers: int
    running: int  # on the awake workers, whoever sent them
    waiting: int  # in their queues
    mean_kv_cache_usage: float  # 0 to 1, over the awake workers

    @property
    def outstanding(self) -> int:
        """Return how many requests are unfinished: callers may also reach workers past the gateways."""
        return max(self.in_flight, self.running + self.waiting)
