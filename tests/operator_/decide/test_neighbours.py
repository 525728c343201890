"""Deployments that share a GPU outside of pools: one that is called waits for one that is idle to sleep."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_operator.act.neighbours import NeighbourBook
from dormouse_operator.decide.neighbours import Gpu, Guest, guest_of, turns_of
from dormouse_operator.model import (
    Activity,
    Engine,
    Key,
    KvCache,
    Ladder,
    Lifecycle,
    Parallelism,
    RecordedStatus,
    Rung,
    WorkerState,
)
from dormouse_operator.model.recorded import Rank
from dormouse_operator.testing.nouns import NOW, a_deployment, a_pod, a_situation, a_worker

GPU, OTHER = Gpu("node", "GPU-1"), Gpu("node", "GPU-2")
ASLEEP = WorkerState.ASLEEP


def a_guest(name, *, awake=False, called=False, since_s=0, gpus=(GPU,), share=0.9, complaint=""):
    return Guest(
        key=Key("team", name),
        gpus=frozenset(gpus),
        share=share,
        is_awake=awake,
        waits_since=NOW + timedelta(seconds=since_s) if called and not awake else None,
        complaint=complaint,
    )


def turns(*guests):
    return {key.name: turn for key, turn in turns_of(guests).items()}


def test_who_has_a_gpu_alone_or_fits_beside_the_others_has_no_turn():
    assert turns(a_guest("a", awake=True), a_guest("b", gpus=[OTHER], called=True)) == {}
    assert turns(a_guest("a", awake=True, share=0.5), a_guest("b", called=True, share=0.5)) == {}
    thirds = [a_guest(name, awake=True, share=0.3) for name in "abc"]
    assert turns(*thirds) == {}, "and no sum of floats is one too many"


def test_an_idle_one_leaves_for_one_that_is_called_which_waits_until_it_sleeps():
    told = turns(a_guest("a", awake=True), a_guest("b", called=True))
    assert (told["a"].yields_for, told["a"].waits_for) == ("team/b", "")
    assert (told["b"].yields_for, told["b"].waits_for) == ("", "team/a")
    assert told["b"].shares == "GPU GPU-1 on node node is shared with team/a"
    assert told["a"].shares == "GPU GPU-1 on node node is shared with team/b"


def test_a_busy_one_is_waited_for_and_knows_for_whom_it_leaves_once_nobody_calls_it():
    told = turns(a_guest("a", awake=True, called=True), a_guest("b", called=True))
    assert (told["a"].yields_for, told["b"].waits_for) == ("team/b", "team/a")
    assert (told["a"].is_held, told["b"].is_held) == (False, True)


def test_a_sleeper_is_held_until_it_was_seen_to_be_called():
    told = turns(a_guest("a"), a_guest("b", called=True))
    assert (told["a"].is_held, told["a"].waits_for, told["b"].is_held) == (True, "", False)


def test_of_two_that_are_called_at_an_empty_gpu_the_one_that_waits_longer_comes_first():
    told = turns(a_guest("a", called=True, since_s=1), a_guest("b", called=True))
    assert (told["b"].waits_for, told["a"].waits_for) == ("", "team/b")
    told = turns(a_guest("a", called=True), a_guest("b", called=True))
    assert (told["a"].waits_for, told["b"].waits_for) == ("", "team/a")


def test_beside_one_that_fits_another_comes_and_a_third_waits_for_both():
    told = turns(*(a_guest(name, awake=name != "c", called=name == "c", share=0.5) for name in "abc"))
    assert told["c"].waits_for == "team/a, team/b"
    assert told["a"].yields_for == told["b"].yields_for == "team/c"


def test_who_cannot_take_turns_is_named_by_its_field_and_is_not_asked_to_leave():
    told = turns(a_guest("a", awake=True, complaint="spec.replicas is 2, not 1"), a_guest("b", called=True))
    assert (told["a"].yields_for, told["a"].complaint) == ("", "spec.replicas is 2, not 1")
    assert told["b"].waits_for == "team/a"


@given(
    st.lists(
        st.tuples(st.booleans(), st.booleans(), st.sampled_from([0.3, 0.5, 0.9]), st.integers(0, 3)),
        min_size=1,
        max_size=6,
    )
)
def test_whoever_may_wake_fits_beside_all_that_are_awake_or_may_wake_too(facts):
    guests = [
        a_guest(f"d{number}", awake=awake, called=called, share=share, since_s=since_s)
        for number, (awake, called, share, since_s) in enumerate(facts)
    ]
    told = turns(*guests)
    coming = [one for one in guests if one.waits_since and not (one.key.name in told and told[one.key.name].is_held)]
    staying = [one for one in guests if one.is_awake]
    if coming:
        assert round(sum(one.share for one in (*staying, *coming)), 6) <= 1.0
    elif any(one.waits_since for one in guests):
        assert staying, "somebody is let in where nobody is awake"
    for one in guests:
        assert one.is_awake or one.key.name not in told or not told[one.key.name].yields_for


def situation(worker=None, *, gpu="GPU-1", activity=None, ladder=None, **fields):
    rank = Rank(rank=0, pod=a_pod().name, num_gpu_blocks=10, num_cpu_blocks=0, allocated_gpu_blocks=10, gpu_uuid=gpu)
    status = RecordedStatus(kv_cache=KvCache(16, 10, 0, "", (rank,)), ladder=ladder)
    deployment = a_deployment(engine=Engine(), recorded=status, **fields)
    return a_situation(worker or a_worker(), deployment=deployment, pods=(a_pod(node="node"),), activity=activity)


def activity(in_flight=0, held=0):
    counts = {"awake_workers": 1, "running": 0, "waiting": 0, "mean_kv_cache_usage": 0.0}
    return Activity(in_flight=in_flight, held=held, quiet_s=0.0, **counts)


def test_what_a_deployment_has_is_read_of_its_status_so_that_sleepers_are_known_too():
    guest = guest_of(situation(a_worker(ASLEEP), activity=activity(held=1)))
    assert (guest.gpus, guest.share, guest.is_awake, guest.waits_since) == ({GPU}, 0.9, False, NOW)
    awake = guest_of(situation(activity=activity()))
    assert (awake.is_awake, awake.waits_since) == (True, None)


def test_a_request_that_just_waits_is_a_call_though_a_gateway_is_not_heard():
    seen = situation(a_worker(ASLEEP), ladder=Ladder(rung=Rung.LEVEL1, since=NOW, reason="idle"))
    assert guest_of(seen).waits_since is None
    assert guest_of(replace(seen, observed=replace(seen.observed, wanted_ago_s=0.0))).waits_since == NOW
    awake = situation(ladder=Ladder(rung=Rung.ACTIVE, since=NOW, reason="request"))
    assert guest_of(replace(awake, observed=replace(awake.observed, wanted_ago_s=0.0))).waits_since is None


def test_who_has_no_gpu_or_has_it_of_a_pool_is_no_guest():
    assert guest_of(situation(gpu="")) is None
    assert guest_of(a_situation(a_worker())) is None
    member = replace(situation(), pods=(a_pod(node="node", pool="shared", slot="shared-0"),))
    assert guest_of(member) is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"lifecycle": Lifecycle("Active", 60)}, "spec.lifecycle.desiredState is Active, not Auto"),
        ({"replicas": 2}, "spec.replicas is 2, not 1"),
        ({"parallelism": Parallelism(tensor=2)}, "spec.parallelism asks for 2 GPUs, not 1"),
        ({}, ""),
    ],
)
def test_what_keeps_a_deployment_from_turns_is_named_by_field_and_value(fields, words):
    assert guest_of(situation(**fields)).complaint == words


def test_the_book_marks_whose_turn_changed_and_who_waits_waits_since_it_was_first_seen():
    marked = []
    book = NeighbourBook(marked.append)
    first = situation(activity=activity())
    book.saw(first)
    assert (marked, repr(book)) == ([], "NeighbourBook(1 on GPUs, 0 take turns)")
    second = situation(a_worker(ASLEEP), activity=activity(held=1), key=Key("team", "second"))
    book.saw(second)
    assert {key.name for key in marked} == {"tiny", "second"}
    assert book.turn_of(Key("team", "second")).is_held
    marked.clear()
    later = replace(second, observed=replace(second.observed, now=NOW + timedelta(seconds=9)))
    book.saw(later)
    assert marked == [], "nothing is news"
    assert book.turn_of(Key("team", "second")).waits_for == "team/tiny"
    book.saw(situation(a_worker(ASLEEP), activity=activity()))
    assert book.turn_of(Key("team", "second")).waits_for == ""
    book.rejected(Key("team", "second"), "uid")
    book.forget(Key("team", "second"))
    book.forget(Key("team", "second"))
    assert book.turn_of(Key("team", "tiny")) is None
    book.saw(situation(gpu=""))
    assert repr(book) == "NeighbourBook(0 on GPUs, 0 take turns)"
