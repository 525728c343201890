"""Who has an adapter in a slot: requests for 500 adapters on 4 workers of 16 slots each, told apart by who routes them.

A simulation without clocks: the gateway's own policy chooses, each worker keeps the adapters that it used last, and as
many requests are outstanding as fill four batches. Adapters are asked for as Zipf's law says, with the exponent 1.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from rich.console import Console

from bench.options import Options, main
from bench.results import RatioAtLeast, Row
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.routing.built_in import LeastTokens, PrefixAffinity
from dormouse_gateway.routing.demand import read_demand
from dormouse_gateway.routing.policy import Choice, Demand, RouterPolicy, Worker

NUM_ADAPTERS, NUM_WORKERS, NUM_SLOTS = 500, 4, 16
NUM_REQUESTS, NUM_OUTSTANDING = 20_000, 128
MOST_TOKENS = 512  # of a request, prompt and answer
GOAL, SEED = 1.3, 1


class AtRandom:
    """Gives to anybody."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, demand: Demand, workers: Sequence[Worker]) -> Choice:
        """See `RouterPolicy`."""
        del demand
        return Choice(self._rng.choice(workers))


@dataclass
class Slots:
    """The adapters of one worker: the one that was not used for longest leaves first."""

    used: OrderedDict[int, None] = field(default_factory=OrderedDict)
    tokens: int = 0  # outstanding

    def take(self, adapter: int) -> bool:
        """Serve one more request; return whether its adapter was there."""
        is_hit = adapter in self.used
        self.used[adapter] = None
        self.used.move_to_end(adapter)
        if len(self.used) > NUM_SLOTS:
            self.used.popitem(last=False)
        return is_hit


def hit_rate(policy: RouterPolicy, *, seed: int, num_requests: int = NUM_REQUESTS) -> float:
    """Return the share of requests that found their adapter in a slot of the worker that they were given to."""
    rng, workers = random.Random(seed), [Slots() for _ in range(NUM_WORKERS)]
    weights = list(accumulate(1 / rank for rank in range(1, NUM_ADAPTERS + 1)))
    kept = [read_demand_of(number) for number in range(NUM_ADAPTERS)]
    outstanding: list[tuple[Slots, int]] = []
    hits = 0
    for adapter in rng.choices(range(NUM_ADAPTERS), cum_weights=weights, k=num_requests):
        if len(outstanding) == NUM_OUTSTANDING:
            worker, tokens = outstanding.pop(rng.randrange(NUM_OUTSTANDING))
            worker.tokens -= tokens
        tokens = rng.randint(1, MOST_TOKENS)
        demand = Demand(prompt_tokens=tokens, adapter=kept[adapter])
        shown = [Worker(f"team/base-{index}", tokens=each.tokens) for index, each in enumerate(workers)]
        choice = policy.choose(demand, shown)
        assert choice is not None, "everybody has room"
        chosen = workers[shown.index(choice.worker)]
        hits += chosen.take(adapter)
        chosen.tokens += tokens
        outstanding.append((chosen, tokens))
    return hits / num_requests


def read_demand_of(adapter: int) -> int | None:
    """Return what the gateway makes of an adapter's name."""
    return read_demand(pb.GenerateRequest(), num_bytes=0, salt="", adapter=f"adapter-{adapter}").adapter


def measure(options: Options, console: Console) -> list[Row]:
    """Return the hit rate of the gateway's policy beside those of others."""
    del options  # every run is the same
    ours = hit_rate(PrefixAffinity(), seed=SEED)
    what = f"{NUM_ADAPTERS} adapters on {NUM_WORKERS} workers of {NUM_SLOTS} slots, Zipf: hit rate beside"
    rows = []
    for name, policy in (("workers at random", AtRandom(random.Random(1))), ("the fewest tokens", LeastTokens())):
        other = hit_rate(policy, seed=SEED)
        console.print(f"  {100 * ours:.1f} % beside {100 * other:.1f} % by {name}", highlight=False)
        rows.append(Row(f"{what} {name}", 100 * ours, "%", 100 * other, RatioAtLeast(GOAL)))
    return rows


if __name__ == "__main__":
    main("adapter_routing", __doc__, measure)
