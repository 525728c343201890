"""The cache holds the newest of every object, whoever brought it, and forgets only what is really gone."""

from __future__ import annotations

import pytest

from dormouse_api.names import COMPONENT_WORKER, LABEL_COMPONENT, LABEL_DEPLOYMENT
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS, SERVICES
from dormouse_kube.errors import Conflict, NotFound
from dormouse_kube.testing import FakeKube
from dormouse_operator.act.writes import Writer
from dormouse_operator.errors import NotLeading
from dormouse_operator.model import Key
from dormouse_operator.watch.cache import Cache

KEY = Key("team", "tiny")
LABELS = {LABEL_DEPLOYMENT: "tiny", LABEL_COMPONENT: COMPONENT_WORKER}


def obj(name="tiny", version=1, uid="1", labels=None, **fields):
    metadata = {"namespace": "team", "name": name, "uid": uid, "resourceVersion": str(version)}
    return {"metadata": {**metadata, "labels": labels or {}}, **fields}


def pod(version=1, uid="1", **fields):
    return obj("tiny-0", version, uid, LABELS, **fields)


@pytest.fixture
def cache() -> Cache:
    made = Cache()
    made.take(INFERENCE_DEPLOYMENTS, obj())
    return made


def test_a_deployment_is_seen_with_its_pods_and_the_service_of_its_name(cache):
    cache.take(PODS, pod(managedFields=None))
    cache.take(SERVICES, obj("tiny", labels=LABELS, spec={"a": 1}))
    cache.take(SERVICES, obj("tiny-group", labels=LABELS))
    cache.take(PODS, obj("stray", labels={}))
    seen = cache.snapshot(KEY)
    assert [item["metadata"]["name"] for item in seen.pods] == ["tiny-0"]
    assert seen.service["spec"] == {"a": 1}
    assert cache.snapshot(Key("team", "other")) is None
    assert repr(cache) == "Cache(1 deployments, 4 changes, complete=False)"


def test_the_newer_version_wins_whoever_brings_it_first(cache):
    assert cache.take(PODS, pod(10, status={"phase": "Running"})) == KEY
    assert cache.take(PODS, pod(9, status={"phase": "Pending"})) is None
    assert cache.take(PODS, pod(10, status={"phase": "Pending"})) is None
    assert cache.snapshot(KEY).pods[0]["status"] == {"phase": "Running"}


def test_every_change_is_another_version_and_nothing_else_is(cache):
    first = cache.snapshot(KEY).version
    cache.take(PODS, pod(2))
    second = cache.snapshot(KEY).version
    cache.take(PODS, pod(1))
    assert first < second == cache.snapshot(KEY).version
    cache.drop(PODS, pod(3))
    assert dict(cache.versions()) == {KEY: cache.snapshot(KEY).version}
    assert cache.snapshot(KEY).version > second


def test_a_late_answer_does_not_bring_back_what_is_gone(cache):
    cache.take(PODS, pod(5))
    assert cache.drop(PODS, pod(7)) == KEY
    assert cache.take(PODS, pod(6)) is None
    assert cache.snapshot(KEY).pods == ()
    assert cache.take(PODS, pod(8, uid="2")) == KEY, "a new one of the name is another object"


def test_a_late_deletion_does_not_remove_the_one_that_took_the_name(cache):
    cache.take(PODS, pod(8, uid="2"))
    assert cache.drop(PODS, pod(7, uid="1")) is None
    assert len(cache.snapshot(KEY).pods) == 1


def test_a_pod_that_lost_its_label_is_found_by_its_name(cache):
    cache.take(PODS, pod(2))
    assert cache.drop(PODS, {**pod(3), "metadata": {**pod(3)["metadata"], "labels": {}}}) == KEY
    assert cache.snapshot(KEY).pods == ()


def test_a_whole_list_removes_what_it_does_not_name_unless_that_is_newer_or_elsewhere(cache):
    cache.take(PODS, pod(2))
    cache.take(PODS, obj("tiny-1", 20, "3", LABELS))
    cache.take(PODS, obj("tiny-2", 3, "4", LABELS))
    assert cache.retain(PODS, "elsewhere", set(), 10) == []
    assert cache.retain(PODS, None, {("team", "tiny-2")}, 10) == [KEY]
    assert [item["metadata"]["name"] for item in cache.snapshot(KEY).pods] == ["tiny-1", "tiny-2"]
    assert cache.take(PODS, pod(10)) is None, "the list was newer"


def test_a_deployment_of_which_nothing_is_left_is_forgotten(cache):
    cache.drop(INFERENCE_DEPLOYMENTS, obj(version=2))
    assert KEY not in cache
    assert cache.num_bytes == 0


def test_the_fields_of_managers_are_not_kept(cache):
    before = cache.num_bytes
    metadata = {**obj(version=2)["metadata"], "managedFields": [{"manager": str(i)} for i in range(1000)]}
    cache.take(INFERENCE_DEPLOYMENTS, {"metadata": metadata})
    assert cache.num_bytes < before + 50


class Right:
    """The right to act, until it is taken."""

    epoch = 1

    def __init__(self) -> None:
        self.leads = True

    def check(self) -> None:
        if not self.leads:
            raise NotLeading("another holds the lease")


def as_applied(name="tiny-0"):
    return {"metadata": {"namespace": "team", "name": name, "labels": LABELS}, "spec": {}}


async def test_what_was_written_is_seen_before_any_watch_tells():
    kube, cache = FakeKube(), Cache()
    writer = Writer(kube, cache, Right())
    cache.take(INFERENCE_DEPLOYMENTS, kube.put(INFERENCE_DEPLOYMENTS, as_applied("tiny")))
    await writer.apply(PODS, as_applied(), field_manager="m")
    uid = cache.snapshot(KEY).pods[0]["metadata"]["uid"]
    version = cache.snapshot(KEY).deployment["metadata"]["resourceVersion"]
    await writer.patch_status(INFERENCE_DEPLOYMENTS, *KEY, {"phase": "Active"}, resource_version=version)
    assert cache.snapshot(KEY).deployment["status"] == {"phase": "Active"}
    with pytest.raises(Conflict):
        await writer.patch_status(INFERENCE_DEPLOYMENTS, *KEY, {"phase": "Off"}, resource_version=version)
    kube.edit(PODS, "team", "tiny-0", lambda it: it["spec"].update(nodeName="n"))
    await writer.delete(PODS, "team", "tiny-0", uid=uid)
    assert "deletionTimestamp" in cache.snapshot(KEY).pods[0]["metadata"]
    kube.finish_deletion(PODS, "team", "tiny-0")
    await writer.delete(PODS, "team", "tiny-0", uid=uid)
    assert cache.snapshot(KEY).pods == ()


async def test_what_the_server_says_does_not_exist_is_forgotten():
    kube, cache = FakeKube(), Cache()
    writer = Writer(kube, cache, Right())
    cache.take(INFERENCE_DEPLOYMENTS, obj())
    cache.take(PODS, pod())
    with pytest.raises(NotFound):
        await writer.apply(PODS, as_applied(), field_manager="m", subresource="status")
    assert cache.snapshot(KEY).pods == ()
    with pytest.raises(NotFound):
        await writer.patch_status(INFERENCE_DEPLOYMENTS, *KEY, {}, resource_version="1")
    assert cache.snapshot(KEY) is None


async def test_without_the_right_nothing_is_sent():
    kube, right = FakeKube(), Right()
    writer = Writer(kube, Cache(), right)
    right.leads = False
    with pytest.raises(NotLeading):
        await writer.apply(PODS, as_applied(), field_manager="m")
    with pytest.raises(NotLeading):
        await writer.create(PODS, as_applied())
    with pytest.raises(NotLeading):
        await writer.patch_status(PODS, "team", "x", {}, resource_version="1")
    with pytest.raises(NotLeading):
        await writer.delete(PODS, "team", "x", uid="1")
    assert kube.calls == []


def test_an_answer_to_a_create_is_known_as_made_while_that_object_is_there(cache):
    cache.take(PODS, pod(5), is_made=True)
    cache.take(PODS, pod(6))
    assert cache.snapshot(KEY).made == {"1"}
    cache.take(PODS, pod(7, uid="2"))
    assert cache.snapshot(KEY).made == set(), "somebody else's of that name"


def test_an_answer_to_a_create_counts_also_when_the_watch_was_faster(cache):
    cache.take(PODS, pod(6))
    before = cache.snapshot(KEY).version
    assert cache.take(PODS, pod(5), is_made=True) == KEY
    assert cache.take(PODS, pod(5), is_made=True) is None
    seen = cache.snapshot(KEY)
    assert (seen.made, seen.pods[0]["metadata"]["resourceVersion"]) == ({"1"}, "6")
    assert seen.version > before
    assert cache.take(PODS, pod(4, uid="of before"), is_made=True) is None
