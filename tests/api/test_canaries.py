"""Which changes of a spec make another try of a canary."""

import pytest

from dormouse_api.canaries import try_of

SPEC = {"model": {"uri": "pvc://a/b"}, "replicas": 1, "canary": {"of": "tiny", "weight": 5}}


@pytest.mark.parametrize(
    "change", [{"replicas": 9}, {"lifecycle": {"desiredState": "Asleep"}}, {"scaling": {"maxReplicas": 2}}]
)
def test_how_many_workers_there_are_and_when_is_the_same_try(change):
    assert try_of({**SPEC, **change}) == try_of(SPEC)


@pytest.mark.parametrize(
    "change", [{"model": {"uri": "pvc://a/c"}}, {"canary": {"of": "tiny", "weight": 6}}, {"image": "b"}]
)
def test_everything_else_is_another_one(change):
    assert try_of({**SPEC, **change}) != try_of(SPEC)


def test_the_order_of_fields_says_nothing():
    assert try_of(dict(reversed(SPEC.items()))) == try_of(SPEC)
