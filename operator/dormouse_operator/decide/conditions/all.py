"""The order of the conditions, from the spec to a serving model. A new step is one file and one line here. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dormouse_operator.decide.conditions import (
    accepted,
    asleep,
    available,
    blocks_agreed,
    cache_allocated,
    degraded,
    memory_profiled,
    model_loaded,
    progressing,
    ready,
    scheduled,
    sleep_verified,
)
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Condition

Step = Callable[[Situation], Condition]

STEPS: Sequence[Step] = (
    accepted.evaluate,
    scheduled.evaluate,
    model_loaded.evaluate,
    memory_profiled.evaluate,
    blocks_agreed.evaluate,
    cache_allocated.evaluate,
    progressing.evaluate,
    ready.evaluate,
    available.evaluate,
    asleep.evaluate,
    sleep_verified.evaluate,
)


def evaluate_all(situation: Situation) -> tuple[Condition, ...]:
    """Return all conditions, in order; the last one sums up the others."""
    conditions = tuple(step(situation) for step in STEPS)
    return (*conditions, degraded.evaluate(situation, conditions))
