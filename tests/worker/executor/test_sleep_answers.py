"""After any sleep the next answer is that of a worker that never slept: its prefix is right, or forgotten.

On the real executor, which computes: each level, of each part, with prefixes kept and not, woken at once and in parts,
and with preparations that are taken back.
"""

from __future__ import annotations

import gc
import itertools

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dormouse_worker.common.commands import KV_CACHE, TAGS, WEIGHTS
from tests.worker.executor.sleeping_rank import EVERY_WORKER, PROMPTS, WORKERS, SleepingRank

SHARES = ((WEIGHTS,), (KV_CACHE,), TAGS)
ORDERS = list(itertools.product((1, 2), SHARES))
KINDS = list(itertools.product(EVERY_WORKER, (False, True)))
TWICE = [  # half of them: each order first and second, taken back and not; random orders below cover more
    pytest.param(*orders, takes_back, marks=() if place % 2 == takes_back else pytest.mark.slow)
    for place, orders in enumerate(itertools.product(ORDERS, (None, *ORDERS)))
    for takes_back in (False, True)
]


@pytest.fixture(scope="module")
def ranks(tiny_model):
    """Return a function that gives the rank of this kind, which all tests of the module share."""
    made = {}

    def rank_of(worker, keeps):
        if (worker, keeps) not in made:
            made[worker, keeps] = SleepingRank(tiny_model, worker, keeps=keeps)
        return made[worker, keeps]

    yield rank_of
    for rank in made.values():
        rank.close()


@pytest.fixture(params=KINDS, ids=[f"{worker}, {'kept' if keeps else 'not kept'}" for worker, keeps in KINDS])
def rank(request, ranks):
    """Return a rank that is awake and knows both prompts."""
    rank = ranks(*request.param)
    rank.forget()
    for prompt in PROMPTS:
        rank.ask(prompt)
    return rank


def check_answers(rank):
    for number in range(len(PROMPTS)):
        rank.check_answer(number)
    rank.forget()
    assert [rank.check_answer(number) for number in range(len(PROMPTS))] == [0, 0]


@pytest.mark.parametrize(("first", "second", "takes_back"), TWICE)
def test_answers_after_one_sleep_or_two_are_those_of_a_worker_that_never_slept(rank, first, second, takes_back):
    for order in (first, second):
        if order is not None:
            rank.sleep(*order)
            if takes_back:
                rank.prepare_and_take_back()
    rank.wake()
    assert rank.is_ready
    check_answers(rank)


@pytest.mark.parametrize("order", [SHARES[:2], SHARES[1::-1]], ids=["weights first", "cache first"])
@pytest.mark.parametrize("between", [None, *ORDERS])
@pytest.mark.parametrize("level", [1, 2])
def test_so_they_are_where_the_parts_wake_one_after_the_other(rank, level, between, order):
    rank.sleep(level)
    rank.wake(order[0])
    if between is not None:
        rank.sleep(*between)
    rank.wake(order[1])
    rank.wake()
    assert rank.is_ready
    check_answers(rank)


@pytest.mark.parametrize("level", [1, 2])
def test_prefixes_outlive_a_sleep_of_the_weights_alone(rank, level):
    rank.sleep(level, (WEIGHTS,))
    rank.wake()
    assert rank.check_answer(0) == 24


def test_kept_prefixes_outlive_a_deeper_sleep_of_the_weights(rank):
    rank.sleep(1)
    rank.sleep(2, (WEIGHTS,))
    rank.prepare_and_take_back()
    rank.wake()
    assert rank.check_answer(0) == (24 if rank.keeps else 0)


def test_a_deep_sleep_forgets_what_a_light_one_kept_though_the_weights_slept_so_deep_already(rank):
    rank.sleep(1)
    rank.sleep(2, (WEIGHTS,))
    rank.sleep(2)
    rank.wake()
    assert rank.check_answer(0) == 0


@pytest.mark.parametrize("worker", WORKERS)
def test_weights_of_8_bits_say_the_same_after_every_level(tiny_model, worker):
    first, second = (SleepingRank(tiny_model, worker, keeps=False, quantization="int8") for _ in range(2))
    assert second.truths == first.truths, "level 3 ends the engine: another one begins"
    for level in (1, 2):
        first.sleep(level)
        first.wake()
        check_answers(first)
    first.close()
    second.close()


class Sleepers(RuleBasedStateMachine):
    """Orders as they come; whenever the rank is open it answers as if it had never slept."""

    rank: SleepingRank

    @initialize()
    def know_both_prompts(self):
        for number in range(len(PROMPTS)):
            self.rank.check_answer(number)

    def teardown(self):
        self.rank.wake()
        check_answers(self.rank)
        gc.freeze()  # else each sleep would look at what all examples before this one left

    @rule(level=st.sampled_from((1, 2)), tags=st.sampled_from(SHARES))
    def sleep(self, level, tags):
        self.rank.sleep(level, tags)

    @rule(tags=st.sampled_from(SHARES))
    def wake(self, tags):
        self.rank.wake(tags)

    @precondition(lambda self: not self.rank.is_ready)
    @rule(tags=st.sampled_from(SHARES))
    def take_back(self, tags):
        self.rank.prepare_and_take_back(tags)

    @rule()
    def forget(self):
        self.rank.forget()

    @precondition(lambda self: self.rank.is_ready)
    @rule(number=st.sampled_from((0, 1)))
    def ask(self, number):
        self.rank.check_answer(number)

    @invariant()
    def ready_and_asleep_exclude_each_other(self):
        assert self.rank.is_ready == (not self.rank.status.sleeping_tags)


@pytest.mark.parametrize(("worker", "keeps"), KINDS)
def test_no_sequence_of_orders_leads_to_another_answer(ranks, worker, keeps):
    machine = type("Machine", (Sleepers,), {"rank": ranks(worker, keeps)})
    shared = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    run_state_machine_as_test(
        machine, settings=settings(max_examples=40, stateful_step_count=15, suppress_health_check=shared)
    )
