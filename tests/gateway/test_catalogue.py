"""Which deployment a name means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_gateway.catalogue import Catalogue
from dormouse_gateway.model import Meant, parse_deployment
from dormouse_gateway.testing.workers import deployment, infd
from dormouse_kube.reflector import ObjectKey


def since(*names, created="2026-01-01T00:00:00Z"):
    """Return adapters that have been there since then."""
    return dict.fromkeys(names, created)


def catalogue_of(*deployments):
    made = Catalogue()
    for one in deployments:
        made.put(one)
    return made


def test_a_deployment_answers_to_its_full_name_and_its_model_name():
    tiny = deployment("tiny", model_name="org/Tiny-1B")
    known = catalogue_of(tiny)
    assert repr(known) == "Catalogue(default/tiny=default/tiny, org/Tiny-1B=default/tiny)"
    assert known.find("org/Tiny-1B") is known.find("default/tiny") is tiny
    assert known.find("tiny") is None, "the object's name is only the default of the model's"
    assert known.get(ObjectKey("default", "tiny")) is tiny


def test_of_two_that_want_a_name_the_older_keeps_it_and_the_younger_inherits_it():
    young = deployment("a", model_name="m", created="2026-01-02T00:00:00Z")
    old = deployment("b", model_name="m", created="2026-01-01T00:00:00Z")
    known = catalogue_of(young)
    assert known.find("m") is young
    known.put(old)
    assert known.find("m") is old
    assert known.names() == ["default/a", "m"]
    known.remove(old.key)
    assert known.find("m") is young


def test_of_two_of_the_same_second_the_first_by_name_keeps_the_model_name():
    known = catalogue_of(deployment("b", model_name="m"), deployment("a", model_name="m"))
    assert known.find("m") is known.find("default/a")


def test_a_model_name_can_not_take_another_deployments_full_name():
    thief = deployment("thief", model_name="default/tiny", created="2000-01-01T00:00:00Z")
    tiny = deployment("tiny")
    known = catalogue_of(thief, tiny)
    assert known.find("default/tiny") is tiny
    assert known.names() == ["default/thief", "tiny"]


def of_namespaces(*namespaces):
    return lambda one: one.key.namespace in namespaces


def at(namespace, name="m", created="2026-01-01T00:00:00Z"):
    return deployment(name, key=ObjectKey(namespace, name), model_name="m", created=created)


def test_a_callers_own_deployment_goes_before_the_one_that_everybody_means():
    older, own = at("a"), at("b", created="2026-01-02T00:00:00Z")
    known = catalogue_of(older, own)
    assert known.find("m") is known.find("m", of_namespaces("c")) is older
    assert known.find("m", of_namespaces("b")) is own
    assert (known.shortest(own, of_namespaces("b")), known.shortest(older, of_namespaces("b"))) == ("m", "a/m")


def test_a_deployment_that_changes_its_model_name_gives_the_old_one_up():
    known = catalogue_of(deployment("a", model_name="x"))
    known.put(deployment("a", model_name="y"))
    assert known.find("x") is None
    assert known.names() == ["y"]
    assert len(known) == 1


def test_removing_what_is_not_known_changes_nothing():
    known = catalogue_of()
    known.remove(ObjectKey("default", "tiny"))
    assert repr(known) == "Catalogue()"


NAMES = st.sampled_from(["a", "b", "default/a", "default/b"])
CHANGES = st.lists(
    st.tuples(st.booleans(), st.sampled_from("abc"), NAMES, st.sampled_from(["2026-01-01", "2026-01-02"])), max_size=12
)


@given(CHANGES)
def test_whatever_the_order_of_changes_every_deployment_is_found_by_each_of_its_listed_names(changes):
    known, truth = Catalogue(), {}
    for is_put, name, model_name, created in changes:
        made = deployment(name, model_name=model_name, created=created)
        if is_put:
            known.put(made)
            truth[made.key] = made
        else:
            known.remove(made.key)
            truth.pop(made.key, None)
    assert known.deployments() == [truth[key] for key in sorted(truth)]
    assert {known.find(name).key for name in known.names()} == set(truth)
    assert all(known.find(made.full_name) is made for made in truth.values())


def test_an_adapter_is_found_by_its_own_name_and_beside_its_bases():
    tiny = deployment("tiny", model_name="org/Tiny", adapters=since("sql", "a:b"))
    known = catalogue_of(tiny)
    assert [known.find_adapter(name).adapter for name in ("sql", "org/Tiny:sql", "default/tiny:sql")] == ["sql"] * 3
    assert [known.find_adapter(name).adapter for name in ("a:b", "org/Tiny:a:b")] == ["a:b"] * 2
    assert [known.find_adapter(name) for name in ("other", "tiny:sql", "org/Tiny:other", "org/Tiny:", "")] == [None] * 5


def test_of_two_adapters_of_one_name_the_older_is_meant_and_a_callers_own_goes_first():
    young, old = (
        deployment(name, key=ObjectKey(space, name), adapters=since("sql", created=f"2026-01-0{day}T00:00:00Z"))
        for name, space, day in (("young", "b", 2), ("old", "a", 1))
    )
    known = catalogue_of(young, old)
    assert known.find_adapter("sql").deployment is old
    assert known.find_adapter("sql", of_namespaces("b")).deployment is young
    assert known.find_adapter("young:sql").deployment is young
    assert known.shortest_adapter(known.find_adapter("sql")) == "sql"
    assert known.shortest_adapter(known.find_adapter("young:sql")) == "young:sql"


def test_a_models_own_name_goes_before_an_adapters():
    known = catalogue_of(deployment("tiny", adapters=since("small")), deployment("small"))
    assert known.shortest_adapter(known.find_adapter("tiny:small")) == "tiny:small"


@pytest.mark.parametrize(
    ("status", "names"),
    [
        ({}, since("sql", "hr")),
        ({"phase": "Active"}, {}),
        (
            {
                "phase": "Active",
                "adapters": [{"name": "sql", "state": "Announcing"}, {"name": "a", "since": "2026-03"}],
            },
            {"a": "2026-03"},
        ),
    ],
    ids=["no operator", "not told yet", "told"],
)
def test_where_an_operator_decides_adapters_are_those_of_which_all_workers_have_heard(status, names):
    told = infd("tiny", adapters=[{"name": "sql"}, {"name": "hr"}]) | {"status": status}
    told["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    assert parse_deployment(told).adapters == names


def test_an_adapter_that_its_base_gives_up_means_nothing_or_whose_else_it_is():
    old, young = (
        deployment(name, adapters=since("sql", "hr", created=f"2026-01-0{day}T00:00:00Z"))
        for day, name in enumerate(("old", "young"), 1)
    )
    known = catalogue_of(old, young)
    known.put(deployment("old", adapters=since("hr")))
    assert known.find_adapter("sql").deployment is young
    known.remove(young.key)
    known.remove(young.key)
    assert known.find_adapter("sql") is None
    assert known.find_adapter("hr").deployment.key == old.key


def test_naming_an_adapter_looks_only_at_those_that_have_it():
    looks = []

    class Counted(dict):
        def __contains__(self, name):
            looks.append(name)
            return super().__contains__(name)

    known = catalogue_of(*(deployment(f"base-{i}", adapters=Counted(since(f"a{i}"))) for i in range(100)))
    for one in known.deployments():
        assert known.shortest_adapter(Meant(one, *one.adapters)) == next(iter(one.adapters))
    assert looks == []
