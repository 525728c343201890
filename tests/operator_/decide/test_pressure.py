"""Who has to sleep deeper for lack of host memory: the least valuable, until each node keeps to its budgets."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from dormouse_operator.decide.pressure import Budgets, Held, Holding, relieve
from dormouse_operator.model import (
    Key,
    Pressure,
)
from dormouse_operator.model.units import GIB
from dormouse_operator.testing.nouns import NOW


def copies(name, *, gib=1, reload_s=1.0, idle_s=100, may_go=True, **more_gib):
    """Return what a deployment keeps: `gib` on node n, more on others."""
    pods = [Held(node=node, copy_bytes=int(size * GIB), level=1) for node, size in {"n": gib, **more_gib}.items()]
    called = NOW - timedelta(seconds=idle_s)
    deepest = 3 if may_go else 0
    return Holding(key=Key("team", name), pods=tuple(pods), reload_s=reload_s, called=called, deepest=deepest)


def told_to(name, level=2):
    return {Key("team", name): Pressure(level=level, words="")}


def evicted(*found, gib=2, begun=()):
    before = {key: told for name in begun for key, told in told_to(name).items()}
    told = relieve(found, Budgets(max_sleeping_bytes=int(gib * GIB)), now=NOW, begun=before)
    assert {one.level for one in told.values()} <= {2}, "no copy is left at level 2"
    return [key.name for key in told]


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
    told = relieve([copies("a", gib=3)], Budgets(max_sleeping_bytes=2 * GIB), now=NOW)[Key("team", "a")]
    assert told.words == "copies of sleeping models take 3.00 GiB on node n, maxSleepingHostBytes is 2.00 GiB"


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
    gone = evicted(*found, gib=gib) if gib else []

    def used(holdings, node):
        return sum(pod.copy_bytes for one in holdings for pod in one.pods if pod.node == node)

    for node in ("n", "m"):
        staying = [one for one in found if one.key.name not in gone]
        movable = [one for one in staying if one.deepest and used([one], node)]
        assert not gib or used(staying, node) <= gib * GIB or not movable
    for name in gone[-1:]:
        last = next(one for one in found if one.key.name == name)
        left = [one for one in found if one.key.name not in gone[:-1]]
        assert any(used(left, node) > gib * GIB for node in ("n", "m") if used([last], node))


def pod(gib=4, *, asks=0, engine=2, level=1, node="n"):
    sizes = {"copy_bytes": int(gib * GIB), "engine_bytes": engine * GIB, "requested_bytes": asks * GIB}
    return Held(node=node, level=level, **sizes)


def model(name, *pods, idle_s=100, deepest=3, reload_s=5.0):
    called = NOW - timedelta(seconds=idle_s)
    return Holding(key=Key("team", name), pods=pods, deepest=deepest, called=called, reload_s=reload_s)


def crowded(*found, gib=10, percent=100, **fields):
    budgets = Budgets(max_node_percent=percent, allocatable={"n": gib * GIB, "m": gib * GIB})
    return {key.name: told.level for key, told in relieve(found, budgets, now=NOW, **fields).items()}


def test_of_a_node_that_is_short_all_go_to_level_2_before_one_goes_to_standby():
    a, b = model("a", pod(), idle_s=1000), model("b", pod())
    assert crowded(a, b, gib=12) == {}
    assert crowded(a, b, gib=11) == {"a": 2}
    assert crowded(a, b, gib=7) == {"a": 2, "b": 2}
    assert crowded(a, b, gib=3) == {"a": 3, "b": 2}
    assert crowded(a, b, gib=1) == {"a": 3, "b": 3}


def test_pinned_copies_of_who_is_awake_count_and_stay():
    awake = model("awake", pod(6, level=0), idle_s=10**6)
    assert crowded(awake, model("a", pod())) == {"a": 2}
    assert crowded(awake, gib=1) == {}, "nobody is put to sleep for memory"


def test_what_a_pod_asks_for_is_kept_for_it_and_nobody_goes_where_that_frees_nothing():
    assert crowded(model("a", pod(asks=6)), model("b", pod(asks=6)), gib=10) == {}, "the scheduler's business"
    assert crowded(model("asks", pod(asks=6), idle_s=10**6), model("takes", pod(asks=1)), gib=10) == {"takes": 2}
    assert crowded(model("a", pod(asks=4)), gib=5) == {"a": 2}, "it frees two of six"


def test_a_group_goes_no_deeper_than_level_2_and_an_order_stays():
    assert crowded(model("group", pod(), pod(node="m"), deepest=2), gib=1) == {"group": 2}
    assert crowded(model("order", pod(), deepest=0), gib=1) == {}


def test_who_sleeps_at_level_2_already_goes_to_standby_where_engines_alone_are_too_many():
    assert crowded(model("a", pod(0, level=2), idle_s=50), model("b", pod(0, level=2)), gib=3) == {"b": 3}
    assert crowded(model("a", pod(0, level=3)), gib=1) == {}, "it has nothing to give"


def test_who_was_told_to_go_to_standby_goes_there_before_others():
    a, b = model("a", pod(0, level=2), idle_s=1), model("b", pod(0, level=2), idle_s=1000)
    assert crowded(a, b, gib=3, begun=told_to("a", 3)) == {"a": 3}
    assert crowded(a, b, gib=3, begun=told_to("a", 2)) == {"b": 3}


def test_a_share_of_the_node_is_meant_and_one_that_is_not_known_has_no_limit():
    assert crowded(model("a", pod()), gib=7, percent=80) == {"a": 2}
    assert crowded(model("a", pod()), gib=8, percent=80) == {}
    assert crowded(model("a", pod(node="new")), gib=1) == {}
    budgets = Budgets(max_node_percent=80, allocatable={"n": 5 * GIB})
    told = relieve([model("a", pod())], budgets, now=NOW)[Key("team", "a")]
    words = "pods of models take 6.00 GiB of host memory on node n, maxNodeMemoryPercent 80 of 5.00 GiB is 4.00 GiB"
    assert told.words == words


@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 8), st.integers(0, 3), st.sampled_from([0, 2, 3]), st.booleans()),
        max_size=7,
    ),
    st.integers(1, 30),
)
def test_a_node_is_short_only_if_everybody_went_as_deep_as_may_be_and_nobody_awake_was_sent(facts, gib):
    found = [
        model(f"d{number}", pod(size, asks=asks, level=level), pod(size, level=level, node="m" if two else "n"))
        for number, (size, asks, level, _, two) in enumerate(facts)
    ]
    found = [replace(one, deepest=fact[3]) for one, fact in zip(found, facts, strict=True)]
    told = crowded(*found, gib=gib)
    for node in ("n", "m"):
        taken = sum(held.taken_at(told.get(one.key.name, 0)) for one in found for held in one.pods if held.node == node)
        could_free = any(
            held.taken_at(one.deepest) < held.taken_at(told.get(one.key.name, 0))
            for one in found
            for held in one.pods
            if held.node == node
        )
        assert taken <= gib * GIB or not could_free
    for one in found:
        assert told.get(one.key.name, 0) <= one.deepest
        assert one.pods[0].level or one.key.name not in told
