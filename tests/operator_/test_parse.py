"""Kubernetes' mappings become the operator's nouns; what the schema should have refused is an error with its name."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dormouse_operator.manifests import revision_of
from dormouse_operator.model import Container, ModelSource, Rollout, Scaling
from dormouse_operator.parse import SpecError, format_time, parse_bytes, parse_deployment, parse_pod, parse_time


def deployment(**spec):
    metadata = {"namespace": "team", "name": "tiny", "uid": "u1", "generation": 3}
    return parse_deployment({"metadata": metadata, "spec": {"model": {"uri": "pvc://models/tiny"}, **spec}})


@pytest.mark.parametrize(
    ("value", "size"),
    [("5", 5), (7, 7), ("2k", 2000), ("2Ki", 2048), ("1.5Gi", 3 * 2**29), ("0.5Mi", 2**19), ("3T", 3 * 10**12)],
)
def test_quantities_are_bytes(value, size):
    assert parse_bytes("field", value) == size


@pytest.mark.parametrize("value", ["", "1GB", "-1", "Gi", "1e3", "1.Gi"])
def test_a_malformed_quantity_is_refused_by_field_and_value(value):
    with pytest.raises(SpecError, match=r"spec\.engine\.swapSpace is .*allowed"):
        parse_bytes("spec.engine.swapSpace", value)


@pytest.mark.parametrize(
    ("uri", "source"),
    [
        ("pvc://models/a/b", ModelSource("/models/models/a/b", "models", "tiny")),
        ("pvc://models", ModelSource("/models/models", "models", "tiny")),
        ("pvc://models/", ModelSource("/models/models", "models", "tiny")),
        ("file:///opt/model", ModelSource("/opt/model", None, "tiny")),
    ],
)
def test_a_uri_says_where_the_directory_is_and_what_to_mount(uri, source):
    assert deployment(model={"uri": uri}).model == source


@pytest.mark.parametrize("uri", ["s3://bucket/x", "pvc:///x", "file://relative"])
def test_an_unknown_uri_is_refused_with_the_allowed_ones(uri):
    with pytest.raises(SpecError, match=r"allowed are hf://ORG/NAME, pvc://CLAIM/PATH and file:///PATH"):
        deployment(model={"uri": uri})


def test_what_the_spec_leaves_out_is_the_default():
    parsed = deployment()
    assert (parsed.replicas, parsed.image, parsed.engine.device) == (1, None, "cuda")
    assert parsed.engine.kv_cache_memory_bytes is None
    assert (parsed.lifecycle.desired_state, parsed.lifecycle.drain_timeout_s) == ("Auto", 60)
    assert parsed.recorded.conditions == {}
    assert not parsed.recorded.is_true("Ready")
    assert parsed.recorded.reason("Ready") == ""


def test_a_served_name_can_be_given():
    assert deployment(model={"uri": "file:///x", "name": "org/big"}).model.served_name == "org/big"


def test_scaling_is_by_outstanding_requests_unless_a_measure_is_named():
    assert deployment().scaling is None
    assert deployment(scaling={"maxReplicas": 3}).scaling == Scaling(max_replicas=3, target_outstanding=32)
    given = {"minReplicas": 2, "maxReplicas": 3, "targetKvUsage": 0.5}
    assert deployment(scaling=given).scaling == Scaling(min_replicas=2, max_replicas=3, target_kv_usage=0.5)


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        ({}, r"maxReplicas is missing"),
        ({"minReplicas": 3, "maxReplicas": 2}, r"minReplicas is 3; allowed are 1 to spec\.scaling\.maxReplicas, 2"),
        ({"minReplicas": 0, "maxReplicas": 2}, r"minReplicas is 0; allowed are 1"),
        ({"maxReplicas": 2, "targetOutstandingPerReplica": 0}, r"targetOutstandingPerReplica is 0; the least is 1"),
        ({"maxReplicas": 2, "targetKvUsage": 1.5}, r"targetKvUsage is 1\.5; allowed are numbers above 0"),
    ],
)
def test_bounds_that_can_not_be_kept_are_refused_by_name(scaling, words):
    with pytest.raises(SpecError, match=words):
        deployment(scaling=scaling)


def test_a_change_of_scaling_asks_for_no_other_pods():
    assert revision_of(deployment(scaling={"maxReplicas": 3}), "i") == revision_of(deployment(), "i")


def test_a_rollout_is_numbers_or_shares():
    assert deployment().rollout == Rollout("Surge", "25%", 0, 1800)
    given = {"strategy": "SleepSwap", "maxSurge": 0, "maxUnavailable": "050%", "progressDeadlineSeconds": 5}
    assert deployment(rollout=given).rollout == Rollout("SleepSwap", 0, "50%", 5)


@pytest.mark.parametrize("value", ["101%", "x", -1, "-1%", "%", ""])
def test_a_malformed_limit_is_refused_by_field_and_value(value):
    with pytest.raises(SpecError, match=r"spec\.rollout\.maxUnavailable is .*allowed"):
        deployment(rollout={"maxUnavailable": value})


@pytest.mark.parametrize(("surge", "unavailable"), [(0, 0), ("0%", 0), (0, "0%")])
def test_a_surge_that_can_never_take_a_step_is_refused(surge, unavailable):
    with pytest.raises(SpecError, match="both 0"):
        deployment(rollout={"maxSurge": surge, "maxUnavailable": unavailable})


def test_a_pod_that_has_just_been_made_knows_little():
    pod = parse_pod({"metadata": {"name": "p", "uid": "u"}})
    assert (pod.index, pod.revision, pod.owner_uid) == (-1, "", "")
    assert pod.container == Container()
    assert not pod.can_be_asked


def test_the_last_end_of_a_container_is_remembered_while_it_runs_again():
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "words\n"}}
    running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    status = {"name": "worker", "state": running, "lastState": ended, "restartCount": 2}
    raw = {"metadata": {"name": "p", "uid": "u"}, "status": {"containerStatuses": [status], "podIP": "10.0.0.1"}}
    pod = parse_pod(raw)
    assert pod.can_be_asked
    assert pod.container.started == datetime(2026, 1, 1, tzinfo=UTC)
    assert (pod.container.exit_code, pod.container.exit_reason, pod.container.exit_message) == (
        137,
        "OOMKilled",
        "words",
    )


def test_times_go_both_ways():
    text = "2026-01-02T03:04:05Z"
    assert format_time(parse_time(text)) == text
    assert parse_time(None) is None
