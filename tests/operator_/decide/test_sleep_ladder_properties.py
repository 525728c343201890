"""Whatever happens, it is never decided to sleep deeper than silence allows, and every call wakes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from dormouse_operator.decide.sleep_evidence import Evidence
from dormouse_operator.decide.sleep_ladder import decide
from dormouse_operator.model import Lifecycle, Rung
from tests.operator_.ladders import quiet

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
delays = st.lists(st.integers(20, 500), min_size=4, max_size=4, unique=True).map(sorted)
maybe = st.lists(st.booleans(), min_size=4, max_size=4)
happenings = st.one_of(
    st.tuples(st.just("pass"), st.floats(0.0, 400.0)),
    st.tuples(st.just("request"), st.floats(0.1, 50.0)),
    st.tuples(st.just("begin"), st.just(0.0)),
    st.tuples(st.just("end"), st.just(0.0)),
    st.tuples(st.just("lose"), st.just(0.0)),
    st.tuples(st.just("find"), st.just(0.0)),
    st.tuples(st.just("intent"), st.just(0.0)),
)


class World:
    """One deployment, its gateway, and an operator that keeps only what a status can hold."""

    def __init__(self, lifecycle):
        self.lifecycle = lifecycle
        self.now, self.ladder, self.intent = NOW, None, ""
        self.serving_since = self.last_request = NOW
        self.running = 0
        self.is_heard = True

    def call(self):
        """Begin a request; the gateway asks for a wake where it finds nobody awake, whether we hear it or not."""
        self.running += 1
        if self.ladder and self.ladder.rung is not Rung.ACTIVE:
            self.intent = self.now.isoformat()

    @property
    def activity(self):
        silence = 0.0 if self.running else (self.now - self.last_request).total_seconds()
        return quiet(silence, in_flight=self.running) if self.is_heard else None

    def look(self):
        decision = decide(
            Evidence(
                now=self.now,
                lifecycle=self.lifecycle,
                ladder=self.ladder,
                serving_since=self.serving_since,
                activity=self.activity,
                wake_intent=self.intent,
            )
        )
        self.ladder = written(decision.ladder)
        return decision


def written(ladder):
    """Return what is left of it in the status: whole seconds."""
    return replace(ladder, since=ladder.since.replace(microsecond=0)) if ladder else None


def passes(world, seconds):
    """Let time pass; the operator looks when it wants to, and at the end."""
    end = world.now + timedelta(seconds=seconds)
    while (decision := world.look()).due and decision.due <= end:
        assert decision.due > world.now, "it would look again and again"
        before, world.now = decision.rung, decision.due
        check(world, before)
    world.now = end
    check(world, world.ladder.rung if world.ladder else Rung.ACTIVE)


def check(world, before):
    """Compare a decision with what may be, whoever made it."""
    was_heard, was_asked = world.is_heard, bool(world.ladder) and world.intent not in {"", world.ladder.wake_intent}
    rung = world.look().rung
    silence_s = (world.now - world.last_request).total_seconds()
    assert not (world.running and was_heard) or rung is Rung.ACTIVE
    assert not (was_asked and before is not Rung.ACTIVE) or rung is Rung.ACTIVE
    if not was_heard:
        assert rung.depth <= before.depth
    if rung is not Rung.ACTIVE and rung is not before:
        limits = (
            world.lifecycle.level1_after_s,
            world.lifecycle.level2_after_s,
            world.lifecycle.level3_after_s,
            world.lifecycle.zero_after_s,
        )
        assert silence_s >= limits[rung.depth - 1]


@settings(max_examples=400, deadline=None)
@given(delays, maybe, st.integers(0, 300), st.lists(happenings, max_size=40))
def test_whatever_happens_it_is_never_deeper_than_silence_allows_and_every_call_wakes(times, has, least_s, history):
    after = [time if wanted else None for time, wanted in zip(times, has, strict=True)]
    world = World(Lifecycle("Auto", 60, 1, *after, min_active_s=least_s))
    for kind, seconds in history:
        if kind == "pass":
            passes(world, seconds)
        elif kind == "begin":
            world.call()
        elif kind == "end" and world.running:
            world.running -= 1
            world.last_request = world.now
        elif kind in {"lose", "find"}:
            world.is_heard = kind == "find"
        elif kind == "intent":
            world.intent = world.now.isoformat()
            assert world.look().rung is Rung.ACTIVE, "an intent wins"
        elif kind == "request":
            world.call()
            assert not world.is_heard or world.look().rung is Rung.ACTIVE
            passes(world, seconds)
            world.running -= 1
            world.last_request = world.now
    if world.running:
        world.running, world.last_request = 0, world.now
    world.is_heard = True
    passes(world, 3000)
    deepest = [
        rung for rung, delay in zip([Rung.LEVEL1, Rung.LEVEL2, Rung.LEVEL3, Rung.ZERO], after, strict=True) if delay
    ]
    assert (world.ladder.rung if world.ladder else Rung.ACTIVE) is (deepest[-1] if deepest else Rung.ACTIVE)
