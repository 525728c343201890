"""FakeKube alone: what it holds is what a server would, and nobody's but its own."""

from enum import StrEnum

import pytest

from dormouse_kube.api import PODS
from dormouse_kube.testing import FakeKube


class Colour(StrEnum):
    """A word of ours."""

    RED = "red"


@pytest.fixture
def kube():
    return FakeKube()


def put(kube, **spec):
    return kube.put(PODS, {"metadata": {"namespace": "a", "name": "p"}, "spec": spec})


def test_words_of_ours_are_plain_words_there_whoever_writes_them(kube):
    put(kube, colour=Colour.RED, colours=(Colour.RED,))
    kube.edit(PODS, "a", "p", lambda pod: pod["spec"].update(edited=Colour.RED, places=(1, 2)))
    spec = kube.peek(PODS, "a", "p")["spec"]
    assert spec == {"colour": "red", "colours": ["red"], "edited": "red", "places": [1, 2]}
    assert {type(spec[name]) for name in ("colour", "edited")} == {str}


def test_what_it_tells_changes_nothing_that_it_holds_nor_what_it_told_before(kube):
    begin = kube.version
    shared = {"name": "x"}
    told = put(kube, one=shared, other=shared)
    listed, (event,) = kube.everything(PODS), kube.told_after(begin, PODS)
    for seen in (told, listed[0], event.object, kube.peek(PODS, "a", "p")):
        seen["spec"]["one"]["name"] = "changed"
        assert seen["spec"]["other"] == {"name": "x"}
    shared["name"] = "changed"
    assert kube.peek(PODS, "a", "p")["spec"] == {"one": {"name": "x"}, "other": {"name": "x"}}
