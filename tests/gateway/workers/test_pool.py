"""Who gets the next request, and who may be closed."""

import dataclasses

import pytest

from dormouse_gateway.routing.policy import Affinity, Choice, Demand
from dormouse_gateway.testing.workers import endpoint
from dormouse_gateway.workers.pool import EndpointPool
from dormouse_gateway.workers.room import WorkerCapacity
from dormouse_kube.reflector import ObjectKey
from tests.gateway.pools import TINY, pick, pool_of, told, tried

OTHER = ObjectKey("default", "other")


def test_the_endpoint_with_the_fewest_outstanding_is_next():
    pool = pool_of(endpoint("a"), endpoint("b"))
    assert [pick(pool) for _ in range(4)] == ["a", "b", "a", "b"]
    assert repr(pool) == (
        "EndpointPool(default/a ready at 10.0.0.1:1: 2 outstanding of 2, "
        "default/b ready at 10.0.0.1:1: 2 outstanding of 2)"
    )


def test_what_one_revision_began_goes_only_to_that_one():
    other = dataclasses.replace(endpoint("b"), revision="r2")
    pool = pool_of(endpoint("a"), other, endpoint("c"))
    assert [pick(pool, like=endpoint("gone")) for _ in range(4)] == ["a", "c", "a", "c"]
    assert pick(pool, like=other) == "b"
    assert pick(pool, like=dataclasses.replace(other, revision="r3")) is None
    assert pick(pool, like=other, tried={other.id: 0}) is None


@pytest.mark.parametrize(("here", "there", "is_same"), [("x", "x", True), ("x", "y", False), ("", "y", True)])
def test_workers_of_one_revision_run_the_same_unless_they_say_that_their_model_files_differ(here, there, is_same):
    pool = pool_of(endpoint("a"), endpoint("b"))
    for name, digest in (("a", here), ("b", there)):
        pool.identify(endpoint(name).id, digest)
        pool.put(endpoint(name))
    (first, second) = pool.endpoints_of(TINY)
    assert pool.has_peer(first) == first.runs_the_same(second) == is_same


def test_what_a_worker_says_of_its_model_is_forgotten_with_it():
    pool = pool_of(endpoint("a"))
    pool.identify(endpoint("gone").id, "x")
    pool.identify(endpoint("a").id, "x")
    pool.put(endpoint("a", address="10.0.0.2:1"))
    assert [one.model_digest for one in pool.endpoints_of(TINY)] == [""]


@pytest.mark.parametrize(
    ("changes", "is_peer"),
    [({}, True), ({"ready": False}, False), ({"revision": "r2"}, False), ({"revision": ""}, False)],
)
def test_a_peer_is_another_ready_endpoint_of_the_same_revision(changes, is_peer):
    here = endpoint("a")
    assert not pool_of(here).has_peer(here)
    assert pool_of(here, dataclasses.replace(endpoint("b"), **changes)).has_peer(here) == is_peer


def test_a_revision_that_is_not_known_is_nobodys_peer():
    here, there = (dataclasses.replace(endpoint(name), revision="") for name in ("a", "b"))
    assert not pool_of(here, there).has_peer(here)


def test_among_equals_the_one_with_the_fewest_total_is_next():
    pool = pool_of(endpoint("a"), endpoint("b"))
    first, second = pool.acquire(TINY, need_ready=True), pool.acquire(TINY, need_ready=True)
    pool.release(first)
    again = pool.acquire(TINY, need_ready=True)
    assert again.endpoint.pod.name == "a"
    pool.release(again)
    pool.release(second)
    assert pick(pool) == "b", "it had one, the other had two"


def test_outstanding_counts_before_total():
    pool = pool_of(endpoint("a"))
    for _ in range(3):
        pool.release(pool.acquire(TINY, need_ready=True))
    pool.put(endpoint("b"))
    assert [pick(pool) for _ in range(3)] == ["b", "a", "b"]
    again = pool_of(endpoint("a"), endpoint("b"))
    slots = [again.acquire(TINY, need_ready=True) for _ in range(3)]
    again.release(slots[0])
    again.release(slots[2])
    assert repr(again).count("0 outstanding of 2") == 1
    assert pick(again) == "a", "b had fewer in all, but is busy"


def test_among_those_with_equal_totals_it_goes_in_turn():
    pool = pool_of(endpoint("a"), endpoint("b"), endpoint("c"))
    order = []
    for _ in range(6):
        slot = pool.acquire(TINY, need_ready=True)
        order.append(slot.endpoint.pod.name)
        pool.release(slot)
    assert order == ["a", "b", "c"] * 2


def test_a_newcomer_is_not_flooded_for_having_a_low_total():
    pool = pool_of(endpoint("a"))
    for _ in range(5):
        pool.release(pool.acquire(TINY, need_ready=True))
    pool.put(endpoint("b"))
    chosen = []
    for _ in range(4):
        slot = pool.acquire(TINY, need_ready=True)
        chosen.append(slot.endpoint.pod.name)
        pool.release(slot)
    assert chosen == ["b", "a", "b", "a"]


def test_without_a_ready_endpoint_only_those_who_need_none_get_one():
    pool = pool_of(endpoint("a", ready=False))
    assert pick(pool) is None
    assert pick(pool, need_ready=False) == "a"


def test_a_ready_endpoint_goes_first_even_for_those_who_need_none():
    pool = pool_of(endpoint("a", ready=False), endpoint("b"))
    assert [pick(pool, need_ready=False) for _ in range(2)] == ["b", "b"]


def test_an_endpoint_that_was_tried_is_left_out():
    pool = pool_of(endpoint("a"))
    assert pick(pool, tried=tried(pool, "a")) is None


def test_each_deployment_has_its_own_endpoints():
    pool = pool_of(endpoint("a"), endpoint("b", "other"))
    assert pool.acquire(OTHER, need_ready=True).endpoint.pod.name == "b"
    assert pool.acquire(ObjectKey("default", "nobody"), need_ready=True) is None


def test_a_pod_that_flips_readiness_keeps_its_counts():
    pool = pool_of(endpoint("a"))
    pick(pool)
    assert pool.put(endpoint("a", ready=False)) == []
    assert repr(pool) == "EndpointPool(default/a running at 10.0.0.1:1: 1 outstanding of 1)"


def test_an_idle_endpoint_that_goes_is_closed_at_once():
    pool = pool_of(endpoint("a"))
    assert pool.remove(endpoint("a").pod) == [endpoint("a").id]
    assert pool.remove(endpoint("a").pod) == []
    assert repr(pool) == "EndpointPool()"


def test_a_busy_endpoint_that_goes_is_closed_after_its_last_request():
    pool = pool_of(endpoint("a"))
    slots = [pool.acquire(TINY, need_ready=True) for _ in range(2)]
    assert pool.remove(endpoint("a").pod) == []
    assert pick(pool) is None
    assert pool.states() == {(TINY, "retired"): 1}
    assert pool.in_flight() == {TINY: 2}
    assert pool.release(slots[0]) == []
    assert pool.release(slots[1]) == [endpoint("a").id]
    assert repr(pool) == "EndpointPool()"


def test_a_busy_endpoint_that_comes_back_is_used_again_with_its_counts():
    pool = pool_of(endpoint("a"))
    slot = pool.acquire(TINY, need_ready=True)
    pool.remove(endpoint("a").pod)
    assert pool.put(endpoint("a")) == []
    assert repr(pool) == "EndpointPool(default/a ready at 10.0.0.1:1: 1 outstanding of 1)"
    assert pool.release(slot) == []


def test_a_pod_with_a_new_address_is_a_new_endpoint_and_the_old_one_is_closed():
    pool = pool_of(endpoint("a", address="10.0.0.1:1"))
    assert pool.put(endpoint("a", address="10.0.0.2:1")) == [endpoint("a", address="10.0.0.1:1").id]


def test_a_pod_that_changes_its_deployment_moves_and_keeps_its_connection():
    pool = pool_of(endpoint("a"))
    assert pool.put(endpoint("a", "other")) == []
    assert pick(pool) is None
    assert pool.states() == {(OTHER, "ready"): 1}


def test_what_a_worker_says_of_itself_counts_more_than_its_pod():
    pool = pool_of(endpoint("a", ready=False))
    pool.tell(endpoint("a"), told())
    assert (pool.is_ready(TINY), pick(pool)) == (True, "a")
    pool.put(endpoint("a"))
    pool.tell(endpoint("a"), told(ready=False))
    assert (pool.is_ready(TINY), pick(pool)) == (False, None)
    pool.tell(endpoint("a"), None)
    assert pick(pool) == "a", "it cannot be heard: its pod decides"


def test_what_is_told_by_a_worker_that_has_gone_or_moved_changes_nothing():
    pool = pool_of(endpoint("a"))
    pool.tell(endpoint("a", address="10.0.0.9:1"), told(ready=False))
    pool.tell(endpoint("b"), told())
    assert (pick(pool), pool.room_of(endpoint("b"))) == ("a", None)


def test_a_worker_that_others_use_counts_as_busy():
    pool = pool_of(endpoint("a"), endpoint("b"))
    pool.tell(endpoint("a"), told(running=3))
    pool.tell(endpoint("b"), told())
    assert [pick(pool) for _ in range(3)] == ["b", "b", "b"]


def test_a_worker_without_room_is_passed_over_only_by_those_who_need_room():
    pool = pool_of(endpoint("a"))
    assert [pick(pool, batch=WorkerCapacity(1, 1)) for _ in range(3)] == ["a", "a", None]
    assert pick(pool) == "a"


def test_work_is_weighed_in_tokens_not_in_requests():
    pool = pool_of(endpoint("a"), endpoint("b"))
    assert pick(pool, demand=Demand(3000, 500)) == "a"
    assert [pick(pool, demand=Demand(500, 500)) for _ in range(3)] == ["b"] * 3
    assert pick(pool, demand=Demand(500, 500)) == "b", "3000 so far"
    assert pick(pool, demand=Demand(500, 500)) == "a"


def test_what_is_answered_counts_no_more():
    pool = pool_of(endpoint("a"), endpoint("b"))
    long = pool.acquire(TINY, need_ready=True, demand=Demand(3000, 100, tokens_per_message=40))
    other = pool.acquire(TINY, need_ready=True, demand=Demand(0, 120))
    long.advance()
    assert pick(pool, demand=Demand(0, 1)) == "a", "its prompt is computed: 100 are left"
    for _ in range(5):
        other.advance()
    assert (long.tokens_left, other.tokens_left) == (100, 116)
    for _ in range(5):
        long.advance()
    assert long.tokens_left == 0, "more was said than was expected"
    pool.release(long)
    pool.release(other)
    assert {slot.tokens for slot in pool._slots.values()} == {0, 1}


def test_requests_of_other_gateways_weigh_as_ours_do_in_the_mean():
    pool = pool_of(endpoint("a"), endpoint("b"))
    pool.tell(endpoint("a"), told(running=2))
    pool.tell(endpoint("b"), told())
    assert [pick(pool, demand=Demand(100, 100)) for _ in range(3)] == ["b", "b", "a"]


def test_the_policy_chooses_and_may_choose_nobody():
    seen = []

    class Last:
        def choose(self, demand, workers):
            seen.append((demand, [worker.name for worker in workers]))
            return Choice(workers[-1], Affinity.HIT) if demand.prefix else None

    pool = EndpointPool(policy=Last())
    for name in "ab":
        pool.put(endpoint(name))
    assert pick(pool) is None
    ticket = pool.acquire(TINY, need_ready=True, demand=Demand(prefix=1))
    assert (ticket.endpoint.pod.name, ticket.affinity) == ("b", Affinity.HIT)
    assert seen == [(Demand(), ["default/a", "default/b"]), (Demand(prefix=1), ["default/a", "default/b"])]


def test_releasing_twice_is_our_own_mistake():
    pool = pool_of(endpoint("a"))
    slot = pool.acquire(TINY, need_ready=True)
    pool.release(slot)
    with pytest.raises(AssertionError, match="released once"):
        pool.release(slot)


def test_a_worker_that_begins_anew_is_not_the_one_that_was_tried():
    pool = pool_of(endpoint("a"))
    before = tried(pool, "a")
    pool.tell(endpoint("a"), told())
    assert pick(pool, tried=before) == "a", "its first word"
    before = tried(pool, "a")
    pool.tell(endpoint("a"), told(running=1))
    assert pick(pool, tried=before) is None
    pool.tell(endpoint("a"), told(ready=False))
    pool.tell(endpoint("a"), told())
    assert pick(pool, tried=before) == "a"


def test_of_a_worker_that_says_nothing_the_kubelet_says_that_it_begins_anew():
    pool = pool_of(endpoint("a"))
    before = tried(pool, "a")
    pool.put(endpoint("a", ready=False))
    assert pick(pool, tried=before) is None
    pool.put(endpoint("a"))
    assert pick(pool, tried=before) == "a"


def test_only_who_says_that_it_takes_requests_is_believed_after_it_lost_one():
    pool = pool_of(endpoint("a"), endpoint("b"))
    pool.tell(endpoint("a"), told())
    before = tried(pool, "a", "b")
    assert pool.silent(TINY, before) == tried(pool, "b")
