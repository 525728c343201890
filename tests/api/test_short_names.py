"""Who answers to a short name: its holder, and after that its namespace, and only then somebody else."""

import math
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_api.short_names import NameRules, Said, Scope, ShortNames, said_of, to_status

OLD, YOUNG, YOUNGEST = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"
GRACE_S = 600.0


class Key(NamedTuple):
    """A deployment's key."""

    namespace: str
    name: str


A, A2, B, C = Key("a", "x"), Key("a", "y"), Key("b", "x"), Key("c", "x")


class World:
    """Names, and a clock that is set by hand."""

    def __init__(self, scope=Scope.HOLDER, grace_s=GRACE_S):
        self.now_s = 1000.0
        self.names = ShortNames(NameRules(scope, grace_s), lambda: self.now_s)

    def put(self, key, created=OLD, name="m", **how):
        self.names.put(key, name, created, **how)

    def holder(self):
        return self.names.holder("m")


@pytest.fixture
def world():
    return World()


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_the_oldest_has_it_in_whatever_order_they_are_heard_of(world, order):
    for key in order:
        world.put(key, {A: OLD, B: YOUNG}[key])
    assert (world.holder(), world.names.is_waiting(B), world.names.keeper(B)) == (A, True, A)


def test_another_namespace_does_not_get_it_before_its_holder_is_gone_for_a_while(world):
    world.put(A)
    world.put(B, YOUNG)
    world.names.remove(A)
    assert (world.holder(), world.names.keeper(B)) == (None, A)
    world.now_s += GRACE_S - 1
    assert (world.holder(), world.names.freed()) == (None, [])
    world.now_s += 1
    assert world.names.freed() == [B]
    assert (world.holder(), world.names.keeper(B)) == (B, B)


def test_who_comes_during_the_grace_waits_as_well_unless_he_is_of_the_same_namespace(world):
    world.put(A)
    world.names.remove(A)
    world.put(B, YOUNG)
    assert world.holder() is None
    world.put(A2, YOUNGEST)
    assert world.holder() == A2
    world.now_s += GRACE_S
    assert world.holder() == A2, "B is older, and it is not his"


def test_nobody_takes_a_name_by_calling_an_older_deployment_by_it(world):
    world.put(B, OLD, name="other")
    world.put(A, YOUNG)
    world.put(B, OLD)
    assert (world.holder(), world.names.is_waiting(B)) == (A, True)


def test_who_gives_a_name_up_by_changing_it_leaves_it_to_its_namespace_for_a_while(world):
    world.put(A)
    world.put(B, YOUNG)
    world.put(A, name="other")
    assert (world.holder(), world.names.holder("other")) == (None, A)
    world.put(A)
    assert world.holder() == A


def test_a_name_that_was_handed_over_is_its_new_holders_as_it_was_the_old_ones(world):
    world.put(A)
    world.put(B, OLD, name="other")
    world.put(B, OLD)
    world.names.remove(A)
    world.now_s += GRACE_S
    assert world.holder() == B
    world.put(C, YOUNGEST)
    assert world.holder() == B


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_after_a_restart_who_waited_for_the_name_goes_on_to_wait(world, order):
    for key in order:
        world.put(key, {A: YOUNG, B: OLD}[key], said=Said.WAITING if key == B else Said.NOTHING)
    assert (world.holder(), world.names.is_waiting(B)) == (A, True)


def test_after_a_restart_who_waits_alone_gets_it_after_the_grace_or_when_the_operator_says_so(world):
    world.put(B, said=Said.WAITING)
    assert (world.holder(), world.names.is_waiting(B), world.names.keeper(B)) == (None, True, None)
    world.put(B, said=Said.WAITING)
    assert world.holder() is None
    world.put(B)
    assert world.holder() == B
    other = World()
    other.put(B, said=Said.WAITING)
    other.now_s += GRACE_S
    assert other.holder() == B


def test_what_the_operator_says_late_takes_nobody_the_name_that_he_has(world):
    world.put(A)
    world.put(A, said=Said.WAITING)
    assert world.holder() == A


def test_a_callers_own_go_before_the_holder_and_of_several_own_the_holder_then_the_oldest(world):
    world.put(A, OLD)
    world.put(B, YOUNG)
    world.put(C, YOUNGEST)
    assert world.names.own("m", lambda key: key.namespace in {"b", "c"}) == B
    assert world.names.own("m", lambda _: True) == A
    assert world.names.own("m", lambda _: False) is None
    assert world.names.own("unknown", lambda _: True) is None


SPELLED = "a/x"  # A's full name, wanted by B


@pytest.mark.parametrize("scope", [Scope.HOLDER, Scope.NAMESPACED])
@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_a_name_that_spells_a_namespace_with_deployments_is_never_another_namespaces(scope, order):
    world = World(scope)
    for key in order:
        world.put(key, {A: YOUNG, B: OLD}[key], name={A: "m", B: SPELLED}[key])
    for _ in range(2):
        meant = (world.names.holder(SPELLED), world.names.own(SPELLED, lambda _: True))
        assert (meant, world.names.is_waiting(B), world.names.spelled(B)) == ((None, None), True, "a")
        world.names.remove(A)
        world.now_s += 10 * GRACE_S


def test_who_has_a_name_loses_it_when_there_are_deployments_in_the_namespace_that_it_spells(world):
    world.put(B, name=SPELLED)
    assert world.names.holder(SPELLED) == world.names.own(SPELLED, lambda _: True) == B
    world.put(A2, name="other")
    assert world.names.holder(SPELLED) is None
    world.put(A, YOUNG, name=SPELLED)
    world.put(C, "2025-01-01T00:00:00Z", name=SPELLED)
    assert world.names.holder(SPELLED) == world.names.own(SPELLED, lambda _: True) == A, "it is its own namespace's"


def test_a_name_with_a_slash_that_spells_no_namespace_is_had_as_others_are(world):
    world.put(B, name="meta-llama/Llama-3")
    world.put(A, YOUNG, name="meta-llama/Llama-3")
    assert (world.names.holder("meta-llama/Llama-3"), world.names.is_waiting(A)) == (B, True)
    assert (world.names.spelled(A), world.names.spelled(C)) == ("", "")


def test_with_names_of_namespaces_nobody_has_one_for_all_and_each_namespace_its_own():
    world = World(Scope.NAMESPACED)
    for key, created in ((A, YOUNG), (A2, OLD), (B, YOUNGEST)):
        world.put(key, created)
    assert (world.holder(), world.names.own("m", lambda key: key.namespace == "b")) == (None, B)
    assert [key for key in (A, A2, B) if world.names.is_waiting(key)] == [A]
    assert world.names.keeper(A) == A2


def test_without_short_names_nobody_has_one_and_nobody_waits():
    world = World(Scope.NONE)
    world.put(A)
    world.put(B)
    assert (world.holder(), world.names.own("m", lambda _: True)) == (None, None)
    assert (world.names.is_waiting(B), world.names.keeper(B)) == (False, None)


def test_names_that_nobody_wants_any_more_are_forgotten(world):
    world.put(A)
    world.put(B, YOUNG)
    world.names.remove(B)
    world.names.remove(A)
    world.names.remove(A)
    assert (world.holder(), world.names.others(A), repr(world.names)) == (None, [], "(0 deployments, {})")
    world.now_s += GRACE_S
    assert world.names.freed() == []
    assert world.names._names == {}


ELSE = [Said.NOTHING, Said.OTHER, Said.WAITING]


@pytest.mark.parametrize("order", [(A, B), (B, A)])
@pytest.mark.parametrize("said", ELSE)
def test_after_a_restart_who_had_the_name_has_it_however_old_another_is_and_whatever_its_status_says(
    world, order, said
):
    for key in order:
        world.put(key, {A: YOUNG, B: OLD}[key], said={A: Said.HELD, B: said}[key])
    assert (world.holder(), world.names.is_waiting(B)) == (A, True)


def test_a_waiting_one_is_not_let_in_by_what_was_said_of_another_name(world):
    world.put(B, said=Said.WAITING)
    world.put(B, said=Said.OTHER)
    assert world.holder() is None
    world.put(B, said=Said.HELD)
    assert world.holder() == B


TAKEN = {"type": "Degraded", "status": "True", "reason": "NameTaken"}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, Said.NOTHING),
        ({"modelName": {"name": "m"}}, Said.HELD),
        ({"modelName": {"name": "m"}, "conditions": [TAKEN]}, Said.HELD),
        ({"modelName": {"name": "m", "takenBy": "a/x"}}, Said.WAITING),
        ({"modelName": {"name": "n"}}, Said.OTHER),
        ({"modelName": {"name": "n", "takenBy": "a/x"}, "conditions": [TAKEN]}, Said.OTHER),
        ({"conditions": [{"type": "Ready"}, TAKEN]}, Said.WAITING),
        ({"conditions": [TAKEN | {"status": "False"}]}, Said.NOTHING),
        ({"conditions": [TAKEN | {"reason": "Forbidden"}]}, Said.NOTHING),
        ({"conditions": [TAKEN | {"type": "Ready"}]}, Said.NOTHING),
    ],
)
def test_what_a_status_says_of_the_name_that_is_wanted_now(status, expected):
    assert said_of(status, "m") is expected


def test_what_the_operator_writes_is_read_as_it_was_meant():
    assert [said_of({"modelName": to_status("m", taken_by)}, "m") for taken_by in ("", "a/x")] == [
        Said.HELD,
        Said.WAITING,
    ]


CHANGES = st.lists(
    st.tuples(
        st.sampled_from([A, A2, B, C]),
        st.sampled_from(["put m", "put n", "waiting", "remove", "time"]),
        st.sampled_from([OLD, YOUNG]),
    ),
    max_size=25,
)


@given(CHANGES)
def test_a_name_never_goes_to_another_namespace_sooner_than_the_grace(changes):
    """Except at first sight of an older one, which is how a process begins."""
    world = World()
    held, free_since = None, -math.inf
    for key, what, _ in changes:
        before = world.holder()
        match what:
            case "put m" | "put n":
                world.put(key, OLD, name=what[-1])
            case "waiting":
                world.put(key, OLD, said=Said.WAITING)
            case "remove":
                world.names.remove(key)
            case _:
                world.now_s += GRACE_S / 3
        holder = world.holder()
        if before is not None and holder is None:
            held, free_since = before, world.now_s
        if before is None and holder is not None and held and holder.namespace != held.namespace:
            assert world.now_s >= free_since + GRACE_S
        if before is not None and holder is not None and holder.namespace != before.namespace:
            assert what == "put m"
            assert (OLD, holder) < (OLD, before)
