"""What is read of custom resources and pods."""

import pytest

from dormouse_api.names import COMPONENT_FOLLOWER, LABEL_COMPONENT, LABEL_DEPLOYMENT
from dormouse_gateway.model import parse_deployment, parse_endpoint
from dormouse_gateway.router import Router
from dormouse_gateway.testing import deployment, endpoint, infd, pod
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


def test_a_running_pod_with_an_address_is_an_endpoint():
    parsed = parse_endpoint(stored(pod("a", "tiny", "10.0.0.1:1")))
    assert parsed == endpoint("a")
    assert parse_endpoint(stored(pod("a", "tiny", "10.0.0.1:1", ready=False))) == endpoint("a", ready=False)


def test_without_a_port_called_grpc_it_is_the_usual_one_and_ipv6_stands_in_brackets():
    raw = stored(pod("a", "tiny"), spec={"containers": [{"ports": [{"containerPort": 80}]}, {}]})
    raw["status"] |= {"podIP": "fd00::1", "conditions": None}
    parsed = parse_endpoint(raw)
    assert parsed.id.address == "[fd00::1]:50051"
    assert not parsed.ready, "without a condition it is not ready"


LABELS = {LABEL_DEPLOYMENT: "tiny", LABEL_COMPONENT: COMPONENT_FOLLOWER}
FOLLOWER = pod("a", "tiny")["metadata"] | STORED | {"labels": LABELS}


@pytest.mark.parametrize(
    "change",
    [
        {"status": {"phase": "Pending", "podIP": "10.0.0.1"}},
        {"status": {"phase": "Running"}},
        {"status": None},
        {"metadata": FOLLOWER},
        {"metadata": pod("a", "tiny")["metadata"] | STORED | {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
    ],
)
def test_a_pod_that_does_not_run_has_no_address_or_goes_is_no_endpoint(change):
    assert parse_endpoint(stored(pod("a", "tiny"), **change)) is None


def test_an_object_that_can_not_be_read_is_left_out_and_stops_nothing(caplog):
    router = Router(on_close=lambda _: None)
    key = ObjectKey("default", "tiny")
    router.on_deployment(key, {"metadata": {"name": "tiny"}, "spec": None})
    router.on_pod(key, {"metadata": {"name": "tiny-0"}, "status": {"podIP": "10.0.0.1", "phase": "Running"}})
    assert repr(router) == "Router(synced=False, Catalogue(), EndpointPool())"
    assert caplog.text.count("can not be read") == 2


def test_a_deployment_that_becomes_unreadable_is_forgotten():
    gone = []
    router = Router(on_close=lambda _: None, on_forget=gone.append)
    router.on_deployment(ObjectKey("default", "tiny"), stored(infd("tiny")))
    router.on_deployment(ObjectKey("default", "tiny"), None)
    router.on_deployment(ObjectKey("default", "tiny"), None)
    assert [one.full_name for one in gone] == ["default/tiny"]
