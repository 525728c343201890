"""The policies that come with the gateway. Pure: the same workers and demand, the same choice, in every gateway.

`PrefixAffinity` is rendezvous hashing (Thaler and Ravishankar, 1998) with bounded loads (Mirrokni, Thorup and
Zadimoghaddam, 2017), loads being tokens:

    weight(w) = mix(prefix, name of w)          the order in which workers are asked; it changes with no load
    limit     = max(slack, bound × (Σ tokens + tokens of the request) / number of workers)
    chosen    = the highest weight among workers with tokens ≤ limit

So requests whose prompts begin alike go to one worker until it has `bound` times the mean, then to the next in an order
of their own; a worker that joins takes over only those prefixes for which its weight is the highest: one n-th. As
`bound` ≥ 1, the least loaded worker is always within the limit.

An adapter stands in the place of the prefix: one worker keeps it in a slot of its device, and its prefixes in its
cache; one that is asked for too often gets a second worker, and the others are spread over all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from dormouse_gateway.routing.policy import Affinity, Choice, Demand, Worker

SLACK_TOKENS = 1024  # a worker with no more than these to compute is never too full: it is done in a moment
CRAMPED = 0.95  # from this use of its KV cache on, a worker soon computes things twice
DEFAULT_BOUND = 1.25

_64_BITS = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class RoundRobin:
    """Gives each worker its turn, whatever it has to do."""

    def choose(self, demand: Demand, workers: Sequence[Worker]) -> Choice:
        """See `RouterPolicy`."""
        del demand
        return Choice(min(workers, key=lambda worker: worker.last_turn))


class LeastTokens:
    """Gives to the worker with the fewest outstanding tokens."""

    def choose(self, demand: Demand, workers: Sequence[Worker]) -> Choice:
        """See `RouterPolicy`."""
        del demand
        return Choice(min(workers, key=_load))


@dataclass(frozen=True, slots=True)
class PrefixAffinity:
    """Gives prompts of one adapter, or that begin alike, to one worker until it is full; others as `LeastTokens`."""

    bound: float = DEFAULT_BOUND  # at least 1; times the mean of the workers' outstanding tokens

    def choose(self, demand: Demand, workers: Sequence[Worker]) -> Choice:
        """See `RouterPolicy`."""
        kept = demand.kept
        if kept is None:
            return Choice(min(workers, key=_load))
        limit = self.limit_tokens(demand, workers)
        favourite = max(workers, key=lambda worker: _weight(kept, worker))
        if _fits(favourite, limit):
            return Choice(favourite, Affinity.HIT)
        fitting = [worker for worker in workers if _fits(worker, limit)]
        if not fitting:
            return Choice(min(workers, key=_load), Affinity.SPILLED)
        return Choice(max(fitting, key=lambda worker: _weight(kept, worker)), Affinity.SPILLED)

    def limit_tokens(self, demand: Demand, workers: Sequence[Worker]) -> float:
        """Return how many outstanding tokens a worker may have to be given the request for its prefix."""
        total = sum(worker.tokens for worker in workers) + demand.tokens
        return max(float(SLACK_TOKENS), self.bound * total / len(workers))


def _fits(worker: Worker, limit_tokens: float) -> bool:
    return worker.tokens <= limit_tokens and worker.kv_cache_usage < CRAMPED


def _load(worker: Worker) -> tuple[bool, float, int, int]:
    """Return what orders workers by load; among those without any, by what they were given, then in turn."""
    return (worker.kv_cache_usage >= CRAMPED, worker.tokens, worker.total, worker.last_turn)


def _weight(prefix: int, worker: Worker) -> tuple[int, str]:
    """Return the worker's weight for the prefix: as good as random, and the same in every process."""
    mixed = prefix ^ (crc32(worker.name.encode()) * _GOLDEN & _64_BITS)
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _64_BITS  # the end of splitmix64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _64_BITS
    return (mixed ^ mixed >> 31, worker.name)
