"""Who waits, in which order, how long and within which limits. Time is told."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dormouse_gateway.hold.line import Held, HoldQueue
from dormouse_gateway.hold.terms import HoldFull, HoldLimits, WaitPolicy, WaitReason
from dormouse_kube.reflector import ObjectKey

TINY, OTHER = ObjectKey("default", "tiny"), ObjectKey("default", "other")
COLD, SATURATED = WaitPolicy(WaitReason.COLD, 300.0), WaitPolicy(WaitReason.SATURATED, 30.0)
ROOMY = HoldLimits(max_bytes=1000, max_total_requests=100, max_total_bytes=1000)


def enter(queue, *, key=TINY, num_bytes=10, at=0.0, terms=COLD, most=100, want=None):
    held = Held(key, num_bytes, at, want=want)
    queue.enter(held, terms, max_requests=most)
    return held


def let_go(queue, key=TINY, *, most=100, wants=None):
    """Let whoever has a turn leave."""
    gone = []
    for held in queue.in_turn(key, wants):
        if len(gone) == most:
            break
        queue.leave(held)
        gone.append(held)
    return gone


def test_requests_leave_in_the_order_in_which_they_came():
    queue = HoldQueue(ROOMY)
    first, second, third = (enter(queue, at=float(at)) for at in range(3))
    assert repr(queue) == "HoldQueue(3 requests of 30 bytes, default/tiny cold: 3 of 30 bytes)"
    assert queue.leave(second), "its client has gone"
    assert not queue.leave(second)
    assert let_go(queue, most=1) == [first]
    assert let_go(queue) == [third]
    assert (let_go(queue), queue.terms(TINY), queue.due_s(TINY)) == ([], None, None)
    assert repr(queue) == "HoldQueue(0 requests of 0 bytes)"


def test_who_stays_holds_those_up_who_want_the_same_and_nobody_else():
    queue = HoldQueue(ROOMY)
    one, other, same, anything = (enter(queue, want=want) for want in ("a", "b", "a", None))
    assert list(queue.in_turn(TINY)) == [one, other, anything]
    assert let_go(queue, wants={None}) == [anything]
    queue.leave(one)
    assert list(queue.in_turn(TINY)) == [other, same]
    queue.check_integrity()


@pytest.mark.parametrize(
    ("limits", "most", "words"),
    [
        (ROOMY, 2, "2 requests wait already; the limit is 2 (spec.lifecycle.maxHeldRequests)"),
        (
            HoldLimits(max_bytes=25, max_total_requests=100, max_total_bytes=1000),
            100,
            "requests of 20 bytes wait already and this one has 10; the limit is 25 per model",
        ),
        (
            HoldLimits(max_bytes=1000, max_total_requests=2, max_total_bytes=1000),
            100,
            "2 requests wait already for all models; the limit is 2",
        ),
        (
            HoldLimits(max_bytes=1000, max_total_requests=100, max_total_bytes=25),
            100,
            "requests of 20 bytes wait already and this one has 10; the limit is 25 for all models",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_limit_until_something_leaves(limits, most, words):
    queue = HoldQueue(limits)
    first = enter(queue, most=most)
    enter(queue, most=most)
    with pytest.raises(HoldFull) as caught:
        enter(queue, most=most)
    assert str(caught.value) == words
    queue.check_integrity()
    queue.leave(first)
    enter(queue, most=most)
    assert len(queue) == 2


def test_who_has_waited_long_enough_is_taken_out_and_the_others_stay():
    queue = HoldQueue(ROOMY)
    early, late = enter(queue, at=0.0), enter(queue, at=100.0)
    assert queue.due_s(TINY) == 300.0
    assert queue.take_overdue(TINY, 299.0) == []
    assert queue.take_overdue(TINY, 300.0) == [early]
    assert queue.due_s(TINY) == 400.0
    assert queue.take_overdue(TINY, 400.0) == [late]
    assert queue.take_overdue(OTHER, 400.0) == []


def test_another_regime_gives_everyone_its_whole_time_and_the_same_one_does_not():
    queue = HoldQueue(ROOMY)
    enter(queue, at=0.0)
    queue.turn(TINY, SATURATED, 290.0)
    assert (queue.due_s(TINY), queue.since_s(TINY)) == (320.0, 290.0)
    queue.turn(TINY, SATURATED, 310.0)
    assert queue.due_s(TINY) == 320.0
    queue.turn(TINY, WaitPolicy(WaitReason.SATURATED, 60.0), 310.0)
    assert queue.due_s(TINY) == 350.0, "somebody changed the limit"
    queue.turn(OTHER, COLD, 310.0)


def test_a_request_that_comes_under_other_terms_changes_those_of_its_line():
    queue = HoldQueue(ROOMY)
    enter(queue, at=0.0, terms=SATURATED)
    enter(queue, at=10.0, terms=COLD)
    assert (queue.terms(TINY), queue.due_s(TINY)) == (COLD, 310.0)


def test_a_whole_line_can_be_taken_and_the_other_one_stays():
    queue = HoldQueue(ROOMY)
    ours = [enter(queue), enter(queue)]
    enter(queue, key=OTHER)
    assert queue.lines() == [OTHER, TINY]
    assert queue.take_all(TINY) == ours
    assert queue.take_all(TINY) == []
    assert (len(queue), queue.count(TINY), queue.count(OTHER)) == (1, 0, 1)


WANTS = st.sampled_from([None, "a", "b"])


class Waiting(RuleBasedStateMachine):
    """Requests come, go, are let go and run out of time, in any order, beside a plain list that does the same."""

    def __init__(self):
        super().__init__()
        self.queue = HoldQueue(HoldLimits(max_bytes=60, max_total_requests=8, max_total_bytes=90))
        self.lines = {TINY: [], OTHER: []}
        self.now_s = 0.0

    @rule(
        key=st.sampled_from([TINY, OTHER]),
        num_bytes=st.integers(0, 40),
        terms=st.sampled_from([COLD, SATURATED]),
        want=WANTS,
    )
    def enters(self, key, num_bytes, terms, want):
        held, line = Held(key, num_bytes, self.now_s, want=want), self.lines[key]
        everyone = [*self.lines[TINY], *self.lines[OTHER]]
        fits = len(line) < 5 and len(everyone) < 8
        fits = fits and sum(one.num_bytes for one in line) + num_bytes <= 60
        fits = fits and sum(one.num_bytes for one in everyone) + num_bytes <= 90
        try:
            self.queue.enter(held, terms, max_requests=5)
        except HoldFull:
            assert not fits
        else:
            assert fits
            line.append(held)

    @rule(key=st.sampled_from([TINY, OTHER]), data=st.data())
    def leaves(self, key, data):
        if line := self.lines[key]:
            held = data.draw(st.sampled_from(line))
            assert self.queue.leave(held)
            line.remove(held)
            assert not self.queue.leave(held)

    @rule(key=st.sampled_from([TINY, OTHER]), had=st.sets(WANTS), most=st.integers(0, 3))
    def go(self, key, had, most):
        """As many go as there is room for, of those who want what is to be had."""
        turns, staying = [], []  # as a walk of the whole line has it
        for held in self.lines[key]:
            if held.want not in {one.want for one in staying}:
                turns.append(held)
                if held.want in had and most:
                    most -= 1
                    continue
            staying.append(held)
        asked = []
        for held in self.queue.in_turn(key):
            asked.append(held)
            assert held in staying or self.queue.leave(held)
        assert asked == turns
        self.lines[key] = staying

    @rule(key=st.sampled_from([TINY, OTHER]), terms=st.sampled_from([COLD, SATURATED]))
    def turns(self, key, terms):
        self.queue.turn(key, terms, self.now_s)

    @rule(key=st.sampled_from([TINY, OTHER]), seconds=st.sampled_from([1.0, 40.0, 400.0]))
    def time_passes(self, key, seconds):
        self.now_s += seconds
        taken, due_s = self.queue.take_overdue(key, self.now_s), self.queue.due_s(key)
        assert taken == self.lines[key][: len(taken)], "from the front, in order"
        del self.lines[key][: len(taken)]
        assert due_s is None or due_s > self.now_s

    @rule(key=st.sampled_from([TINY, OTHER]))
    def is_deleted(self, key):
        assert self.queue.take_all(key) == self.lines[key]
        self.lines[key].clear()

    @invariant()
    def nothing_leaks(self):
        self.queue.check_integrity()
        assert [self.queue.count(key) for key in (TINY, OTHER)] == [len(self.lines[key]) for key in (TINY, OTHER)]
        assert len(self.queue) == sum(map(len, self.lines.values()))


TestWaiting = Waiting.TestCase
TestWaiting.settings = settings(max_examples=100, deadline=None)
