"""Short names as callers meet them: their own models first, and no name that has just changed hands."""

import grpc
import pytest

from dormouse_api.short_names import NameRules, Scope
from dormouse_api.status import CallError
from dormouse_gateway.clients.key_files import ApiKey
from dormouse_gateway.clients.keys import ANYBODY, Caller
from dormouse_gateway.router import Router
from dormouse_gateway.testing.workers import infd
from dormouse_kube.reflector import ObjectKey

TAKEN = {"conditions": [{"type": "Degraded", "status": "True", "reason": "NameTaken"}]}


def bound_to(*models):
    return Caller(ApiKey("team", b"", frozenset(models)))


class World:
    """A router that knows the model `m` of two namespaces, and a clock that is set by hand."""

    def __init__(self, scope=Scope.HOLDER):
        self.now_s = 0.0
        self.router = Router(on_close=lambda _: None, names=NameRules(scope, grace_s=600.0), clock=lambda: self.now_s)
        self.router.is_synced = True
        self.put("a", "2026-01-01T00:00:00Z")
        self.put("b", "2026-01-02T00:00:00Z")

    def put(self, namespace, created, status=None, *, model="m", adapters=()):
        told = [{"name": each} for each in adapters]
        obj = infd("x", namespace=namespace, model=model, adapters=told) | {"status": status or {}}
        obj["metadata"] |= {"uid": namespace, "creationTimestamp": created}
        self.router.on_deployment(ObjectKey(namespace, "x"), obj)

    def delete(self, namespace):
        self.router.on_deployment(ObjectKey(namespace, "x"), None)

    def meant(self, name="m", caller=ANYBODY):
        """Return what the caller gets by the name, the code of the refusal if nothing."""
        try:
            return self.router.resolve(name, caller).deployment.full_name
        except CallError as error:
            return error.code


NOT_FOUND = grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        (("b/*",), "b/x"),
        (("b/x",), "b/x"),
        (("b/*", "m"), "b/x"),
        (("m",), "a/x"),
        (("a/*", "b/*"), "a/x"),
        (("c/*",), NOT_FOUND),
    ],
)
def test_a_keys_own_namespaces_go_before_the_holder_of_the_name(models, expected):
    assert World().meant(caller=bound_to(*models)) == expected


def test_a_key_lists_its_own_model_by_the_short_name_and_never_gets_the_holders_by_it():
    world, caller = World(), bound_to("b/*", "m")
    assert {name: one.full_name for name, one in world.router.models(caller).items()} == {"m": "b/x"}
    assert world.meant("a/x", caller) is NOT_FOUND
    assert sorted(world.router.models()) == ["b/x", "m"]


def test_a_name_whose_holder_is_gone_means_nothing_for_a_while_and_then_the_next_one():
    world = World()
    world.delete("a")
    assert (world.meant(), world.meant("b/x"), sorted(world.router.models())) == (NOT_FOUND, "b/x", ["b/x"])
    world.now_s = 600.0
    assert (world.meant(), sorted(world.router.models())) == ("b/x", ["m"])


def test_the_holders_namespace_has_the_name_back_at_once():
    world = World()
    world.delete("a")
    world.put("a", "2026-01-03T00:00:00Z")
    assert world.meant() == "a/x"


@pytest.mark.parametrize("caller", [ANYBODY, bound_to("a/x"), bound_to("a/*"), bound_to("a/x", "thief/*")])
def test_a_full_name_goes_to_no_other_namespace_when_its_deployment_is_gone(caller):
    world = World()
    world.put("thief", "2025-01-01T00:00:00Z", model="a/x")
    assert world.meant("a/x", caller) == "a/x"
    world.delete("a")
    world.now_s = 1e6
    assert world.meant("a/x", caller) is NOT_FOUND
    assert "thief/x" in world.router.models()
    world.put("a", "2026-01-03T00:00:00Z")
    assert world.meant("a/x", caller) == "a/x"


def test_a_gateway_that_starts_believes_the_operator_who_waits():
    world = World()
    fresh = World()
    for namespace in ("a", "b"):
        fresh.delete(namespace)
    fresh.now_s = 1e6
    fresh.put("b", "2025-01-01T00:00:00Z", TAKEN)
    assert fresh.meant() is NOT_FOUND
    fresh.put("a", "2026-01-01T00:00:00Z")
    assert fresh.meant() == "a/x" == world.meant()


ILL = {"conditions": [{"type": "Degraded", "status": "True", "reason": "Forbidden"}]}  # hides NameTaken


def named(model, taken_by=""):
    return {"modelName": {"name": model} | ({"takenBy": taken_by} if taken_by else {})}


@pytest.mark.parametrize("told", [named("m", "a/x"), named("former"), {}])
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_gateway_that_starts_gives_a_live_name_to_no_older_decoy_whatever_else_ails_that(told, order):
    world = World()
    for namespace in "ab":
        world.delete(namespace)
    world.now_s = 1e6
    status = {"a": ("2026-01-03T00:00:00Z", named("m")), "b": ("2025-01-01T00:00:00Z", {**ILL, **told})}
    for namespace in order:
        world.put(namespace, *status[namespace])
    assert world.meant() == "a/x"


@pytest.mark.parametrize(
    ("scope", "anybody", "bound"), [(Scope.NAMESPACED, NOT_FOUND, "b/x"), (Scope.NONE, NOT_FOUND, NOT_FOUND)]
)
def test_other_scopes_know_names_of_namespaces_or_none(scope, anybody, bound):
    world = World(scope)
    assert (world.meant(), world.meant(caller=bound_to("b/*"))) == (anybody, bound)
    assert world.meant("a/x") == "a/x"


@pytest.mark.parametrize(
    ("models", "usable"),
    [
        (("m",), {"m", "sql"}),
        (("sql",), {"sql"}),
        (("a/x:sql",), {"sql"}),
        (("a/*",), {"m", "sql"}),
        (("b/*",), set()),
        (("legal",), set()),
    ],
)
def test_a_key_may_use_a_bases_adapters_or_those_that_it_names(models, usable):
    world, caller = World(), bound_to(*models)
    world.delete("b")
    adapted = infd("x", namespace="a", model="m", adapters=[{"name": "sql"}])
    adapted["metadata"] |= {"uid": "a", "creationTimestamp": "2026-01-01T00:00:00Z"}
    world.router.on_deployment(ObjectKey("a", "x"), adapted)
    assert {name for name in ("m", "sql") if world.meant(name, caller) == "a/x"} == usable
    assert {*world.router.models(caller), *world.router.adapters(caller)} == usable


@pytest.mark.parametrize(
    ("scope", "by_anybody", "by_its_owner"),
    [(Scope.HOLDER, "b/x", "b/x"), (Scope.NAMESPACED, NOT_FOUND, "b/x"), (Scope.NONE, NOT_FOUND, NOT_FOUND)],
)
def test_an_adapters_name_alone_is_a_short_name_and_means_something_beside_its_base_to_all(
    scope, by_anybody, by_its_owner
):
    world, owner = World(scope), bound_to("b/*")
    world.put("b", "2026-01-02T00:00:00Z", adapters=["sql"])
    assert [world.meant("sql"), world.meant("sql", owner)] == [by_anybody, by_its_owner]
    assert world.meant("b/x:sql") == world.meant("b/x:sql", owner) == "b/x"
    assert world.meant(*world.router.adapters(owner), owner) == "b/x"


@pytest.mark.parametrize("name", ["m", "a/x"])
def test_the_name_of_a_model_that_is_gone_goes_to_no_adapter_of_another_namespace(name):
    world = World()
    world.put("thief", "2025-01-01T00:00:00Z", model="decoy", adapters=["m", "a/x"])
    world.delete("b")
    world.delete("a")
    assert world.meant(name) is NOT_FOUND
    assert world.meant(f"thief/x:{name}") == "thief/x"


def test_a_young_adapter_of_an_old_deployment_takes_no_name_and_has_it_after_a_grace_when_its_holder_goes():
    world = World()
    held, taken = ([{"name": "sql", "since": f"2026-02-0{day}T00:00:00Z"}] for day in (1, 2))
    world.put("b", "2026-01-02T00:00:00Z", {"phase": "Active", "adapters": held})
    world.put("a", "2026-01-01T00:00:00Z", {"phase": "Active", "adapters": taken})
    assert (world.meant("sql"), world.meant("sql", bound_to("a/*"))) == ("b/x", "a/x")
    world.put("b", "2026-01-02T00:00:00Z", {"phase": "Active"})
    assert world.meant("sql") is NOT_FOUND, "what clients say to a name does not end at another team's adapter at once"
    world.put("b", "2026-01-02T00:00:00Z", {"phase": "Active", "adapters": held})
    assert world.meant("sql") == "b/x"
    world.delete("b")
    world.now_s += 601
    assert world.meant("sql") == "a/x"
