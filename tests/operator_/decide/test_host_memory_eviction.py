"""Whose copies in host memory have to go: the least valuable, until each node keeps to its budget."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from dormouse_operator.act.host_memory import HostMemoryBook
from dormouse_operator.decide.host_memory_eviction import Copies, copies_of, evictions
from dormouse_operator.model import Actuation, Key, Ladder, Lifecycle, RecordedStatus, Rung, WorkerState
from dormouse_operator.model.units import GIB
from dormouse_operator.testing.nouns import NOW, a_deployment, a_pod, a_situation, a_worker, but

ASLEEP = WorkerState.ASLEEP
LEVEL1 = Ladder(rung=Rung.LEVEL1, since=NOW, reason="idle", idle_since=NOW - timedelta(seconds=600))


def copies(name, *, gib=1, reload_s=1.0, idle_s=100, may_go=True, **more_gib):
    """Return what a deployment keeps: `gib` on node n, more on others."""
    sizes = {node: int(size * GIB) for node, size in {"n": gib, **more_gib}.items()}
    called = NOW - timedelta(seconds=idle_s)
    return Copies(key=Key("team", name), bytes_by_node=sizes, reload_s=reload_s, called=called, may_go=may_go)


def evicted(*found, gib=2, begun=()):
    keys = {Key("team", name) for name in begun}
    return [key.name for key in evictions(found, limit_bytes=int(gib * GIB), now=NOW, begun=keys)]


def test_as_long_as_all_fit_nobody_goes():
    assert evicted(copies("a"), copies("b")) == []


def test_of_equals_the_one_that_was_called_longest_ago_goes():
    assert evicted(copies("a", idle_s=10), copies("b", idle_s=1000), copies("c", idle_s=100)) == ["b"]


def test_who_is_cheap_to_reload_goes_before_who_is_dear_though_it_was_called_later():
    assert evicted(copies("dear", reload_s=60, idle_s=1000), copies("cheap", idle_s=100), gib=1) == ["cheap"]
    assert evicted(copies("dear", reload_s=60, idle_s=60_000), copies("cheap", idle_s=100), gib=1) == ["dear"]


def test_it_is_bytes_that_count_and_no_more_go_than_have_to():
    small = [copies(f"s{number}", gib=0.1, idle_s=10 + number) for number in range(9)]
    assert evicted(*small, copies("large", gib=5, idle_s=1000), gib=1) == ["large"]
    assert evicted(*small, copies("large", gib=5, idle_s=1), gib=5.75) == ["s8", "s7"]


def test_a_node_s_lack_is_no_reason_for_who_is_on_another():
    away = copies("away", gib=0, idle_s=10**6, m=1)
    assert evicted(away, copies("a", gib=3), copies("b", gib=1, idle_s=1), gib=2) == ["a"]


def test_one_that_is_on_two_nodes_frees_both():
    both = copies("both", gib=2, m=2, idle_s=10**6)
    assert evicted(both, copies("a"), copies("b", gib=0, m=1), gib=2) == ["both"]


def test_what_sleeps_by_order_takes_room_and_stays():
    assert evicted(copies("order", gib=2, may_go=False, idle_s=10**6), copies("a", idle_s=1), gib=2) == ["a"]
    assert evicted(copies("order", gib=3, may_go=False), gib=2) == []


def test_who_was_told_to_goes_first_so_that_nobody_else_has_to():
    assert evicted(copies("a", idle_s=1), copies("b", idle_s=1000), gib=1, begun=["a"]) == ["a"]
    assert evicted(copies("a", idle_s=1), gib=1, begun=["a"]) == [], "and stays if that is no longer needed"


def test_the_words_name_the_node_and_both_numbers():
    words = evictions([copies("a", gib=3)], limit_bytes=2 * GIB, now=NOW)[Key("team", "a")]
    assert words == "copies of sleeping models take 3.00 GiB on node n, maxSleepingHostBytes is 2.00 GiB"


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.floats(0, 100), st.integers(0, 10**6), st.booleans()),
        max_size=8,
    ),
    st.integers(0, 10),
)
def test_each_node_keeps_to_its_budget_and_nobody_goes_for_nothing(facts, gib):
    found = [
        copies(f"d{number}", gib=n, m=m, reload_s=reload_s, idle_s=idle_s, may_go=may_go)
        for number, (n, m, reload_s, idle_s, may_go) in enumerate(facts)
    ]
    gone = evicted(*found, gib=gib)
    for node in ("n", "m"):
        staying = [one for one in found if one.key.name not in gone]
        movable = [one for one in staying if one.may_go and one.bytes_by_node[node]]
        used = sum(one.bytes_by_node[node] for one in staying)
        assert used <= gib * GIB or not movable
    for name in gone[-1:]:
        last = next(one for one in found if one.key.name == name)
        left = [one for one in found if one.key.name not in gone[:-1]]
        assert any(
            sum(one.bytes_by_node[node] for one in left) > gib * GIB
            for node in ("n", "m")
            if node in last.bytes_by_node
        )


def sleeping(*gib, level=1, ladder=LEVEL1, recorded=None, **fields):
    workers = [a_worker(ASLEEP, sleep_level=level, host_copy_bytes=size * GIB) for size in gib]
    pods = tuple(a_pod(place, node=f"node-{place}") for place in range(len(gib)))
    deployment = a_deployment(replicas=len(gib), recorded=recorded or RecordedStatus(), **fields)
    return a_situation(*workers, deployment=deployment, pods=pods, ladder=ladder)


def test_what_sleeps_at_level_1_keeps_what_its_workers_say_on_their_nodes():
    found = copies_of(sleeping(2, 3))
    assert found.bytes_by_node == {"node-0": 2 * GIB, "node-1": 3 * GIB}
    assert (found.reload_s, found.called, found.may_go) == (3.0, LEVEL1.idle_since, True)


def test_a_wake_from_level_2_that_was_measured_says_what_a_reload_takes():
    measured = RecordedStatus(last_actuation=Actuation("level2", 42.0, "request", ""))
    assert copies_of(sleeping(2, recorded=measured)).reload_s == 42.0
    other = RecordedStatus(last_actuation=Actuation("level1", 0.5, "request", ""))
    assert copies_of(sleeping(2, recorded=other)).reload_s == 2.0


def test_who_keeps_nothing_is_deeper_or_is_on_its_way_there_has_no_copies():
    assert copies_of(sleeping(0)) is None
    assert copies_of(sleeping(2, level=2)) is None
    assert copies_of(sleeping(2, recorded=RecordedStatus(ladder=replace(LEVEL1, rung=Rung.LEVEL2)))) is None
    assert copies_of(a_situation(a_worker(host_copy_bytes=GIB), None)) is None
    assert copies_of(sleeping(2, recorded=RecordedStatus(ladder=LEVEL1))) is not None


def test_what_sleeps_by_order_may_not_go_and_what_serves_in_part_was_called_when_it_woke():
    assert not copies_of(sleeping(2, ladder=None, lifecycle=Lifecycle("Asleep", 60))).may_go
    woken = Ladder(rung=Rung.ACTIVE, since=NOW, reason="request", awake=1)
    assert copies_of(sleeping(2, ladder=woken)).called == NOW


def test_the_book_tells_those_whom_it_concerns_once_and_forgets_who_is_gone():
    marked = []
    book = HostMemoryBook(3 * GIB, clock=lambda: NOW, mark=marked.append)
    first = sleeping(2)
    book.saw(first)
    assert (marked, book.pressure_on(first.deployment.key)) == ([], "")
    other = but(sleeping(2), deployment=a_deployment(key=Key("team", "other")))
    book.saw(replace(other, ladder=replace(LEVEL1, idle_since=NOW)))
    book.saw(replace(other, ladder=replace(LEVEL1, idle_since=NOW)))
    assert marked == [first.deployment.key]
    assert "4.00 GiB on node node-0" in book.pressure_on(first.deployment.key)
    assert repr(book) == "HostMemoryBook(2 with copies, 1 to go)"
    book.forget(other.deployment.key)
    book.forget(other.deployment.key)
    assert book.pressure_on(first.deployment.key) == ""
    book.saw(sleeping(2, level=2))
    assert repr(book) == "HostMemoryBook(0 with copies, 0 to go)"
