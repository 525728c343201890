"""What is told of a deployment of which a part sleeps on while the rest serves."""

from __future__ import annotations

from dataclasses import replace

from dormouse_operator.decide.conditions import asleep
from dormouse_operator.decide.conditions.all import evaluate_all
from dormouse_operator.decide.events import events
from dormouse_operator.decide.findings import find
from dormouse_operator.decide.phases import Phase, replica_phase
from dormouse_operator.decide.status import wake_seconds, woken_from
from dormouse_operator.model import Ladder, Rank, Rung, WorkerState
from dormouse_operator.testing.nouns import NOW, REVISION, a_deployment, a_situation, a_worker, recorded

READY, ASLEEP = WorkerState.READY, WorkerState.ASLEEP
LADDER = Ladder(rung=Rung.ACTIVE, since=NOW, reason="request", awake=1)
SPARE = f"tiny-{REVISION}-1"


def partial(*, level_before=1, level=1, **fields):
    """Return one replica that was woken from level 1, and one that sleeps on at `level`."""
    ranks = [Rank(0, f"tiny-{REVISION}-0", 2000, 0, 2000, sleep_level=1)]
    ranks.append(Rank(0, SPARE, 2000, 0, 2000, sleep_level=level_before))
    workers = a_worker(READY, last_wake_s=0.5), a_worker(ASLEEP, sleep_level=level, last_wake_s=9.0)
    wanted = a_deployment(replicas=2, recorded=replace(recorded(2000, *ranks), ladder=LADDER))
    return a_situation(*workers, deployment=wanted, ladder=LADDER, spares=frozenset({SPARE}), **fields)


def told(seen):
    found = find(seen)
    told = events(seen, found, evaluate_all(seen, found))
    return [event.message for event in told if event.reason == "Evicted"]


def test_who_sleeps_on_is_asleep_and_not_about_to_wake():
    seen = partial()
    assert [replica_phase(seen, find(seen), pod) for pod in seen.pods] == [Phase.ACTIVE, Phase.ASLEEP]


def test_a_wake_is_told_of_those_that_woke_only():
    seen = partial(level_before=2)
    assert (woken_from(seen), wake_seconds(seen)) == (1, 0.5)


def test_who_may_sleep_on_is_not_missed_though_it_refused_to_wake():
    seen = partial(refusals={SPARE: "no memory"})
    assert asleep.evaluate(seen).reason == asleep.AWAKE
    assert asleep.evaluate(replace(seen, spares=frozenset())).reason == asleep.WAKE_REFUSED


def test_a_copy_that_went_is_told_once():
    words = "1 replicas that sleep went to level 2: host memory was short"
    assert told(partial(level=2)) == [words]
    assert told(partial(level_before=2, level=2)) == []
    assert told(partial()) == []
