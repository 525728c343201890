"""What is read of custom resources and EndpointSlices, and whom requests may be given."""

from dataclasses import replace

import pytest

from dormouse_gateway.model import LABEL_SERVICE, parse_deployment, parse_slice
from dormouse_gateway.router import Router
from dormouse_gateway.testing.slices import slice_of
from dormouse_gateway.testing.workers import deployment, endpoint, infd, pod
from dormouse_kube.reflector import ObjectKey

STORED = {"uid": "uid-a", "creationTimestamp": "2026-01-01T00:00:00Z"}


def stored(obj, **changes):
    """Return the object as the API server keeps it."""
    return obj | {"metadata": obj["metadata"] | STORED} | changes


def test_a_deployment_is_named_after_its_object_unless_it_names_a_model():
    assert parse_deployment(stored(infd("tiny"))).model_name == "tiny"
    assert parse_deployment(stored(infd("tiny", model="m"))).model_name == "m"


def test_a_deployment_without_status_has_defaults():
    raw = stored(infd("tiny"))
    del raw["spec"]["replicas"]
    assert parse_deployment(raw) == deployment("tiny", uid="uid-a")


def test_the_reason_is_that_of_the_condition_ready_while_it_is_not_true():
    ready = {"type": "Ready", "status": "False", "reason": "Loading", "message": "0 of 2"}
    other = {"type": "Accepted", "status": "True", "reason": "Valid", "message": ""}
    status = {"phase": "Loading", "conditions": [other, ready]}
    parsed = parse_deployment(stored(infd("tiny", lifecycle={"desiredState": "Asleep"}, replicas=2), status=status))
    expected = ("Loading", "Loading", "0 of 2", "Asleep", 2)
    assert (parsed.phase, parsed.reason, parsed.message, parsed.desired_state, parsed.replicas) == expected
    ready["status"] = "True"
    assert parse_deployment(stored(infd("tiny"), status=status)).reason == ""


def test_what_says_how_long_to_hold_and_how_deep_it_sleeps_is_read():
    asleep = {
        "type": "Asleep",
        "status": "True",
        "message": "1 of 1 workers are asleep at level 2; freed 1.00 GiB",
    }
    raw = stored(
        infd("tiny", lifecycle={"holdTimeoutSeconds": 5, "maxHeldRequests": 6}, engine={"maxNumSeqs": 7}),
        status={"conditions": [asleep]},
    )
    parsed = parse_deployment(raw)
    assert (parsed.hold_timeout_s, parsed.max_held, parsed.max_num_seqs, parsed.sleep_level) == (5.0, 6, 7, 2)
    asleep["status"] = "False"
    assert parse_deployment(raw).sleep_level == 0


def test_where_a_wakeable_model_is_ready_the_reason_is_that_of_degraded():
    ready = {"type": "Ready", "status": "True", "reason": "Asleep", "message": ""}
    degraded = {"type": "Degraded", "status": "True", "reason": "WakeRefused", "message": "1 GiB is missing"}
    raw = stored(infd("tiny"), status={"conditions": [ready, degraded]})
    assert parse_deployment(raw).reason == "WakeRefused"


def parsed_slice(**changes):
    """Return what is read of the slice of one pod, with fields of its only endpoint changed."""
    raw = slice_of(stored(pod("a", "tiny", "10.0.0.1:1")))
    raw["endpoints"][0] |= changes
    return parse_slice(raw)


def test_a_pod_with_an_address_is_an_endpoint_and_ready_as_the_slice_says():
    plain = replace(endpoint("a"), revision="")
    assert parsed_slice() == (ObjectKey("default", "tiny"), (plain,))
    assert parsed_slice(conditions={"ready": False})[1] == (replace(plain, ready=False),)
    assert parsed_slice(conditions={})[1] == (plain,), "nothing said is ready, as the API has it"


def test_without_a_port_called_grpc_it_is_the_usual_one_and_ipv6_stands_in_brackets():
    raw = slice_of(stored(pod("a", "tiny"))) | {"ports": [{"name": "web", "port": 80}, {"name": "grpc", "port": None}]}
    raw["endpoints"][0]["addresses"] = ["fd00::1"]
    ((found,),) = (parse_slice(raw)[1],)
    assert found.id.address == "[fd00::1]:50051"


@pytest.mark.parametrize(
    "change",
    [
        {"addresses": []},
        {"targetRef": None},
        {"targetRef": {"kind": "Node", "name": "a", "uid": "uid-a"}},
        {"targetRef": {"kind": "Pod", "name": "a"}},
        {"conditions": {"ready": True, "terminating": True}},
    ],
)
def test_what_is_no_pod_has_no_address_or_goes_is_no_endpoint(change):
    assert parsed_slice(**change)[1] == ()


def test_a_slice_without_endpoints_has_none():
    raw = slice_of(stored(pod("a", "tiny"))) | {"ports": None, "endpoints": None}
    assert parse_slice(raw)[1] == ()


KEY, SLICE = ObjectKey("default", "tiny"), ObjectKey("default", "tiny-xyz")


def knowing(*uids):
    """Return the deployment with these pods in its status."""
    pods = [{"name": f"pod-{uid}", "uid": uid, "revision": f"r-{uid}"} for uid in uids]
    return stored(infd("tiny"), status={"pods": pods})


def sliced(*uids):
    """Return a slice with these pods."""
    raw = slice_of(stored(pod("a", "tiny", "10.0.0.1:1")))
    ready = {"addresses": ["10.0.0.1"], "conditions": {"ready": True}}
    raw["endpoints"] = [{**ready, "targetRef": {"kind": "Pod", "name": f"pod-{uid}", "uid": uid}} for uid in uids]
    return raw


def routed(router):
    return {endpoint.id.pod_uid: endpoint.revision for endpoint in router.pool.endpoints_of(KEY)}


@pytest.mark.parametrize("is_slice_first", [True, False])
def test_only_pods_that_the_operator_made_are_routed_to_whatever_labels_others_carry(is_slice_first):
    router = Router(on_close=lambda _: None)
    told = [lambda: router.on_slice(SLICE, sliced("a", "stranger")), lambda: router.on_deployment(KEY, knowing("a"))]
    for tell in told if is_slice_first else reversed(told):
        assert routed(router) == {}
        tell()
    assert routed(router) == {"a": "r-a"}


@pytest.mark.parametrize(
    ("status", "uids"),
    [({"phase": "Active"}, ["a"]), ({}, []), ({"phase": "Rejected"}, []), ({"phase": "Zero", "pods": []}, [])],
)
def test_an_operator_that_does_not_say_yet_what_it_made_is_taken_at_its_labels(status, uids):
    router = Router(on_close=lambda _: None)
    router.on_deployment(KEY, stored(infd("tiny"), status=status))
    router.on_slice(SLICE, sliced("a"))
    assert list(routed(router)) == uids


def test_a_pod_goes_when_it_leaves_all_slices_or_the_status_and_whoever_closes_is_told():
    closed, seen = [], []
    router = Router(on_close=lambda endpoint: closed.append(endpoint.pod_uid))
    router.on_endpoint = lambda was, now: seen.append((was and was.id.pod_uid, now and now.id.pod_uid))
    router.on_deployment(KEY, knowing("a", "b", "c"))
    router.on_slice(SLICE, sliced("a", "b"))
    router.on_slice(SLICE._replace(name="other"), sliced("b", "c"))
    assert sorted(routed(router)) == ["a", "b", "c"]
    router.on_slice(SLICE, None)
    assert sorted(routed(router)) == ["b", "c"]
    router.on_deployment(KEY, knowing("c"))
    assert sorted(routed(router)) == ["c"]
    router.on_deployment(KEY, None)
    assert (routed(router), closed) == ({}, ["a", "b", "c"])
    assert seen == [(None, "a"), (None, "b"), (None, "c"), ("a", None), ("b", None), ("c", None)]


def test_a_slice_that_comes_to_be_of_another_service_leaves_the_first():
    router = Router(on_close=lambda _: None)
    router.on_deployment(KEY, knowing("a"))
    router.on_slice(SLICE, sliced("a"))
    moved = sliced("a")
    moved["metadata"]["labels"][LABEL_SERVICE] = "elsewhere"
    router.on_slice(SLICE, moved)
    assert routed(router) == {}


def test_an_object_that_can_not_be_read_is_left_out_and_stops_nothing(caplog):
    router = Router(on_close=lambda _: None)
    key = ObjectKey("default", "tiny")
    router.on_deployment(key, {"metadata": {"name": "tiny"}, "spec": None})
    router.on_slice(SLICE, {"metadata": {"name": "tiny-xyz", "namespace": "default"}, "endpoints": []})
    assert repr(router) == "Router(synced=False, Catalogue(), EndpointPool())"
    assert caplog.text.count("cannot be read") == 2


def test_a_deployment_that_becomes_unreadable_is_forgotten():
    gone = []
    router = Router(on_close=lambda _: None, on_forget=gone.append)
    router.on_deployment(ObjectKey("default", "tiny"), stored(infd("tiny")))
    router.on_deployment(ObjectKey("default", "tiny"), None)
    router.on_deployment(ObjectKey("default", "tiny"), None)
    assert [one.full_name for one in gone] == ["default/tiny"]
