"""The order of the conditions, from the spec to a serving model, and what each follows from. Pure.

A new condition is one file and two lines here.
"""

from __future__ import annotations

from collections.abc import Mapping

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
from dormouse_operator.decide.findings import Findings
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Condition

Conditions = Mapping[str, Condition]  # by type, in the order of the status


def evaluate_all(situation: Situation, findings: Findings) -> Conditions:
    """Return all conditions, each evaluated once; the last one sums up the others."""
    taken, loaded = accepted.evaluate(findings.rejection), model_loaded.evaluate(situation)
    earlier = (
        taken,
        scheduled.evaluate(situation, taken),
        loaded,
        memory_profiled.evaluate(situation, findings.blocks, loaded),
        blocks_agreed.evaluate(situation, findings.blocks),
        cache_allocated.evaluate(situation, findings.blocks),
    )
    sleep = asleep.evaluate(situation)
    conditions = (
        *earlier,
        progressing.evaluate(situation, findings),
        ready.evaluate(situation, findings, earlier, sleep),
        available.evaluate(situation, findings.serving),
        sleep,
        sleep_verified.evaluate(situation),
    )
    return {each.type: each for each in (*conditions, degraded.evaluate(situation, conditions))}
