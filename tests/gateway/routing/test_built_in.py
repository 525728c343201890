"""Who is chosen: the same workers and demand, the same choice. Pure."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_gateway.routing.built_in import (
    CRAMPED,
    DEFAULT_BOUND,
    SLACK_TOKENS,
    LeastTokens,
    PrefixAffinity,
    RoundRobin,
)
from dormouse_gateway.routing.policy import Affinity, Demand, Worker

PREFIXES = st.integers(0, (1 << 64) - 1)
LOADS = st.lists(st.integers(0, 50_000), min_size=1, max_size=12)
BOUNDS = st.floats(1.0, 5.0)


def workers_of(*tokens, usage=0.0):
    return [Worker(f"ns/w{index}", tokens=load, kv_cache_usage=usage) for index, load in enumerate(tokens)]


def favourite_of(prefix, workers):
    """Return who has the prefix where nobody has anything to do."""
    idle = [Worker(worker.name) for worker in workers]
    return PrefixAffinity().choose(Demand(prefix=prefix), idle).worker.name


@pytest.mark.parametrize(
    ("workers", "chosen"),
    [
        ([Worker("a", tokens=7), Worker("b", tokens=6, requests=9, total=99)], "b"),
        ([Worker("a", total=2), Worker("b", total=1, last_turn=5)], "b"),
        ([Worker("a", last_turn=2), Worker("b", last_turn=1)], "b"),
        ([Worker("a", kv_cache_usage=CRAMPED), Worker("b", tokens=10_000)], "b"),
        ([Worker("a", kv_cache_usage=1.0, tokens=2), Worker("b", kv_cache_usage=1.0, tokens=1)], "b"),
    ],
    ids=["fewest tokens", "then given least", "then in turn", "whose cache is full comes last", "unless all are"],
)
def test_the_worker_with_the_fewest_outstanding_tokens_is_chosen(workers, chosen):
    for policy in (LeastTokens(), PrefixAffinity()):
        choice = policy.choose(Demand(10, 10), workers)
        assert (choice.worker.name, choice.affinity) == (chosen, Affinity.NONE)


def test_round_robin_goes_in_turn_whatever_they_have_to_do():
    turns = {"a": 0, "b": 0, "c": 0}
    order = []
    for turn in range(1, 7):
        workers = [Worker(name, tokens=1000 if name == "a" else 0, last_turn=last) for name, last in turns.items()]
        name = RoundRobin().choose(Demand(), workers).worker.name
        turns[name] = turn
        order.append(name)
    assert order == ["a", "b", "c"] * 2


@given(PREFIXES, LOADS, BOUNDS, st.integers(0, 20_000))
def test_a_worker_beyond_the_bound_gets_nothing_for_its_prefixes(prefix, loads, bound, cost):
    policy, workers = PrefixAffinity(bound), workers_of(*loads)
    choice = policy.choose(Demand(cost, prefix=prefix), workers)
    mean = (sum(loads) + max(1, cost)) / len(loads)
    assert choice.worker.tokens <= max(SLACK_TOKENS, bound * mean), "the bound of the method, somebody is always below"
    assert choice.affinity is not Affinity.NONE


@given(PREFIXES, LOADS, BOUNDS)
def test_a_prefix_stays_with_its_worker_until_that_one_is_too_full(prefix, loads, bound):
    policy, workers = PrefixAffinity(bound), workers_of(*loads)
    demand = Demand(1, prefix=prefix)
    choice, owner = policy.choose(demand, workers), favourite_of(prefix, workers)
    load = next(worker.tokens for worker in workers if worker.name == owner)
    is_too_full = load > policy.limit_tokens(demand, workers)
    assert (choice.worker.name == owner) == (not is_too_full)
    assert choice.affinity is (Affinity.SPILLED if is_too_full else Affinity.HIT)


@given(PREFIXES, st.lists(st.integers(1, 4000), min_size=1, max_size=60), st.integers(1, 8))
def test_requests_that_all_begin_alike_fill_worker_after_worker_and_none_beyond_the_bound(prefix, costs, num_workers):
    loads = Counter({f"ns/w{index}": 0 for index in range(num_workers)})
    for cost in costs:
        workers = [Worker(name, tokens=load) for name, load in loads.items()]
        limit = max(SLACK_TOKENS, DEFAULT_BOUND * (sum(loads.values()) + cost) / num_workers)
        name = PrefixAffinity().choose(Demand(cost, prefix=prefix), workers).worker.name
        assert loads[name] <= limit
        loads[name] += cost
    assert max(loads.values()) <= max(SLACK_TOKENS, DEFAULT_BOUND * sum(costs) / num_workers) + max(costs)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=8, unique=True), PREFIXES, st.randoms())
def test_the_order_in_which_workers_are_known_changes_nothing(names, prefix, rng):
    workers = [Worker(name, tokens=5) for name in names]
    shuffled = rng.sample(workers, len(workers))
    demand = Demand(1, prefix=prefix)
    assert PrefixAffinity().choose(demand, workers) == PrefixAffinity().choose(demand, shuffled)


@pytest.mark.parametrize("num_workers", [2, 5, 20])
def test_a_worker_that_joins_takes_over_one_share_of_the_prefixes_and_moves_no_other(num_workers):
    rng = random.Random(1)
    prefixes = [rng.getrandbits(64) for _ in range(4000)]
    before, after = workers_of(*[0] * num_workers), workers_of(*[0] * (num_workers + 1))
    newcomer = after[-1].name
    moves = [(favourite_of(prefix, before), favourite_of(prefix, after)) for prefix in prefixes]
    moved = [pair for pair in moves if pair[0] != pair[1]]
    assert {owner for _, owner in moved} == {newcomer}
    assert len(moved) / len(prefixes) == pytest.approx(1 / (num_workers + 1), rel=0.15)
    shares = Counter(owner for _, owner in moves).values()
    assert max(shares) / min(shares) < 1.6, "about the same for each"


def test_it_is_the_same_in_every_process():
    """Two gateways send a prefix to the same worker: no hash of it depends on the interpreter."""
    names = [favourite_of(prefix, workers_of(0, 0, 0, 0)) for prefix in (1, 2, 3, 1 << 63, 12345678901234567890)]
    assert names == ["ns/w0", "ns/w1", "ns/w3", "ns/w3", "ns/w1"]


def test_a_worker_whose_cache_is_full_is_too_full():
    workers = workers_of(0, 0)
    owner = favourite_of(7, workers)
    cramped = [Worker(worker.name, kv_cache_usage=1.0 if worker.name == owner else 0.1) for worker in workers]
    choice = PrefixAffinity().choose(Demand(1, prefix=7), cramped)
    assert (choice.worker.name != owner, choice.affinity) == (True, Affinity.SPILLED)
    everywhere = workers_of(30, 20, usage=1.0)
    assert PrefixAffinity().choose(Demand(1, prefix=7), everywhere).worker.name == "ns/w1", "then the least loaded"


def test_the_rest_of_a_choice_costs_the_prompt_again_and_what_is_left():
    demand = Demand(100, 50, num_choices=3, tokens_per_message=4, prefix=7)
    assert (demand.tokens, Demand().tokens) == (250, 1)
    assert demand.rest(20) == Demand(120, 30, 1, 4, 7)
    assert demand.rest(60).output_tokens == 0


def test_requests_for_an_adapter_go_to_one_worker_whatever_their_prompts():
    workers = workers_of(0, 0, 0, 0)
    for adapter in range(50):
        chosen = [PrefixAffinity().choose(Demand(prefix=prefix, adapter=adapter), workers) for prefix in (None, 7, 8)]
        assert {choice.worker.name for choice in chosen} == {favourite_of(adapter, workers)}
        assert {choice.affinity for choice in chosen} == {Affinity.HIT}


def test_an_adapter_that_is_asked_for_too_often_gets_a_second_worker_of_its_own():
    names = [favourite_of(adapter, workers_of(0, 0, 0)) for adapter in range(200)]
    assert min(Counter(names).values()) > 40
    hot = [Worker(name, tokens=50_000 if name == names[5] else 0) for name in sorted(set(names))]
    seconds = {PrefixAffinity().choose(Demand(prefix=prefix, adapter=5), hot) for prefix in range(5)}
    assert len(seconds) == 1
    (second,) = seconds
    assert (second.worker.name != names[5], second.affinity) == (True, Affinity.SPILLED)
