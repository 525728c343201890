"""Kubernetes' mappings become the operator's nouns; what the schema should have refused is an error with its name."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dormouse_api.names import ANNOTATION_WAKE
from dormouse_operator.manifests import revision_of
from dormouse_operator.model import Container, ModelSource, Prewarm, Rollout, Rung, Scaling
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
    with pytest.raises(
        SpecError, match=r"allowed are hf://ORG/NAME, hf://ORG/NAME:GGUF, oci://REGISTRY/NAME:TAG, .*file:///PATH"
    ):
        deployment(model={"uri": uri})


def test_what_the_spec_leaves_out_is_the_default():
    parsed = deployment()
    assert (parsed.replicas, parsed.image, parsed.engine.device) == (1, None, "cuda")
    assert (parsed.engine.kv_cache_memory_bytes, parsed.engine.prefault_kv_cache) == (None, False)
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


def test_the_ladder_has_its_delays_and_null_is_never():
    assert deployment().lifecycle.level1_after_s == 600
    spec = {
        "level1AfterSeconds": None,
        "level2AfterSeconds": 60,
        "level3AfterSeconds": 61,
        "zeroAfterSeconds": 62,
        "minActiveSeconds": 0,
    }
    lifecycle = deployment(lifecycle={**spec, "prewarm": [{"cron": "0 7 * * *", "timeZone": "Asia/Tokyo"}]}).lifecycle
    assert (lifecycle.level1_after_s, lifecycle.level2_after_s, lifecycle.level3_after_s) == (None, 60, 61)
    assert lifecycle.zero_after_s == 62
    assert (lifecycle.min_active_s, lifecycle.prewarm) == (0, (Prewarm("0 7 * * *", "Asia/Tokyo"),))
    assert deployment(lifecycle={"level1AfterSeconds": 5}).lifecycle.zero_after_s is None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"parallelism": {"pipeline": 2}}, r"spec\.lifecycle\.spares needs spec\.parallelism\.pipeline 1"),
        ({"gpu": {"pool": {"name": "p"}}}, r"spec\.lifecycle\.spares cannot be set beside spec\.gpu\.pool"),
    ],
)
def test_spares_are_for_replicas_of_one_pod_outside_of_pools(more, words):
    assert deployment(lifecycle={"spares": 2}).lifecycle.spares == 2
    with pytest.raises(SpecError, match=words):
        deployment(lifecycle={"spares": 2}, **more)


@pytest.mark.parametrize("parallelism", [{"tensor": 2}, {"pipeline": 2}])
def test_a_spare_engine_is_for_single_ranks(parallelism):
    assert deployment(lifecycle={"spareEngine": True}).lifecycle.spare_engine
    with pytest.raises(SpecError, match=r"spec\.lifecycle\.spareEngine needs spec\.parallelism\.tensor 1"):
        deployment(lifecycle={"spareEngine": True}, parallelism=parallelism)


@pytest.mark.parametrize(
    ("lifecycle", "words"),
    [
        ({"level1AfterSeconds": 0}, "level1AfterSeconds is 0; the least is 1, null is never"),
        ({"level2AfterSeconds": 600}, "level2AfterSeconds is 600; allowed is more than .*level1AfterSeconds, 600"),
        (
            {"level1AfterSeconds": None, "level2AfterSeconds": 9, "zeroAfterSeconds": 8},
            "zeroAfterSeconds is 8; allowed is more than .*level2AfterSeconds, 9",
        ),
        (
            {"level1AfterSeconds": None, "level3AfterSeconds": 9, "zeroAfterSeconds": 9},
            "zeroAfterSeconds is 9; allowed is more than .*level3AfterSeconds, 9",
        ),
        ({"prewarm": [{"cron": "* * * *"}]}, r"prewarm\[0\].cron is '\* \* \* \*'; needed are five fields"),
        ({"prewarm": [{"cron": "0 * * * * *"}]}, "five fields"),
        ({"prewarm": [{"cron": "0 7 * * *"}, {"cron": "0 25 * * *"}]}, r"prewarm\[1\].cron is '0 25 .*Bad hour"),
        ({"prewarm": [{"cron": "0 0 30 2 *"}]}, "Bad day-of-month"),
        (
            {"prewarm": [{"cron": "0 7 * * *", "timeZone": "Mars/Base"}]},
            r"prewarm\[0\].timeZone is 'Mars/Base'; allowed",
        ),
        ({"prewarm": [{"cron": "0 7 * * *", "timeZone": "Europe"}]}, "timeZone is 'Europe'"),
        ({"prewarm": [{"cron": "0 7 * * *", "timeZone": "../x"}]}, "timeZone is '../x'"),
    ],
)
def test_a_ladder_that_makes_no_sense_is_refused_with_field_and_value(lifecycle, words):
    with pytest.raises(SpecError, match=rf"spec\.lifecycle\..*{words}" if words[0] != "l" else words):
        deployment(lifecycle=lifecycle)


def test_what_gateways_ask_for_and_the_rung_are_read_as_they_stand():
    raw = {"rung": "Level2", "since": "2026-01-01T00:10:00Z", "reason": "idle", "wakeRequestedAt": "x"}
    parsed = parse_deployment(
        {
            "metadata": {"namespace": "t", "name": "n", "uid": "u", "annotations": {ANNOTATION_WAKE: "whatever"}},
            "spec": {"model": {"uri": "pvc://models/tiny"}},
            "status": {"lifecycle": {**raw, "idleSince": "2026-01-01T00:00:00Z"}},
        }
    )
    assert parsed.wake_intent == "whatever"
    ladder = parsed.recorded.ladder
    assert (ladder.rung, ladder.idle_s, ladder.wake_intent) == (Rung.LEVEL2, 600, "x")
    assert deployment().recorded.ladder is None
