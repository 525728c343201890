"""Who calls which model of a pool when: models of unlike popularity and size, calls in bursts, the same for a seed.

popularity of model i   1 / i, as Zipf found it of words and others of models
calls of a model        a Poisson process that is 6 times its mean for a minute, half of it for ten, in turns
work of a call          how long it runs once it is served, lognormal, bounded
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

TWO_HOURS_S = 7200.0
CALM_S, BURST_S = 600.0, 60.0  # means
CALM, BURST = 0.5, 6.0  # times the model's mean rate
MEDIAN_WORK_S, WORK_SIGMA, LONGEST_WORK_S = 3.0, 0.8, 60.0
SMALLEST_GB, LARGEST_GB = 4.0, 32.0  # of weights
LINK_GB_PER_S = 20.0  # from host memory to the device
ORDERS_S = 0.15  # what the operator, the API server and the golden tokens add to a wake
DROP_S = 0.2  # a sleep at level 1: what is dropped was copied when it was loaded


@dataclass(frozen=True, slots=True)
class Model:
    """One member of the pool."""

    slots: tuple[int, ...]  # it has a replica on each
    wake_s: float
    sleep_s: float = DROP_S


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    at_s: float
    model: int
    work_s: float


@dataclass(frozen=True, slots=True)
class Trace:
    """All that happens to a pool from outside."""

    models: tuple[Model, ...]  # the most popular first
    calls: tuple[Call, ...]  # in order of time
    num_slots: int
    seconds: float


def make_trace(
    *, seed: int = 0, num_models: int = 40, num_slots: int = 4, places: int = 2, calls_per_s: float = 1.0
) -> Trace:
    """Return two hours of calls to models that have a replica on `places` of the slots."""
    rng = random.Random(seed)
    models = tuple(_make_model(rng, number, num_slots, places) for number in range(num_models))
    weights = [1.0 / (number + 1) for number in range(num_models)]
    calls = [
        Call(at_s, number, _work_s(rng))
        for number, weight in enumerate(weights)
        for at_s in _arrivals(rng, calls_per_s * weight / sum(weights))
    ]
    return Trace(models, tuple(sorted(calls, key=lambda call: call.at_s)), num_slots, TWO_HOURS_S)


def busy_pair(seed: int = 0) -> Trace:
    """Return a slot that two models share, to each of which one or two calls a second come all the time."""
    rng = random.Random(seed)
    models = (Model((0,), wake_s=1.0), Model((0,), wake_s=1.0))
    calls = [Call(at_s, model, _work_s(rng)) for model in (0, 1) for at_s in _poisson(rng, 1.5, 0.0, TWO_HOURS_S)]
    return Trace(models, tuple(sorted(calls, key=lambda call: call.at_s)), 1, TWO_HOURS_S)


def _make_model(rng: random.Random, number: int, num_slots: int, places: int) -> Model:
    gigabytes = SMALLEST_GB * (LARGEST_GB / SMALLEST_GB) ** rng.random()
    step = 1 + number // num_slots % max(1, num_slots - 1)  # so that not all neighbours meet twice
    slots = {(number + place * step) % num_slots for place in range(places)}
    return Model(tuple(sorted(slots)), wake_s=ORDERS_S + gigabytes / LINK_GB_PER_S)


def _work_s(rng: random.Random) -> float:
    return min(LONGEST_WORK_S, MEDIAN_WORK_S * rng.lognormvariate(0.0, WORK_SIGMA))


def _arrivals(rng: random.Random, per_s: float) -> Iterator[float]:
    """Yield when a model is called."""
    start_s, is_burst = 0.0, rng.random() < BURST_S / (BURST_S + CALM_S)
    while start_s < TWO_HOURS_S:
        end_s = min(TWO_HOURS_S, start_s + rng.expovariate(1.0 / (BURST_S if is_burst else CALM_S)))
        yield from _poisson(rng, per_s * (BURST if is_burst else CALM), start_s, end_s)
        start_s, is_burst = end_s, not is_burst


def _poisson(rng: random.Random, per_s: float, start_s: float, end_s: float) -> Iterator[float]:
    at_s = start_s + rng.expovariate(per_s)
    while at_s < end_s:
        yield at_s
        at_s += rng.expovariate(per_s)
