"""The pods, Services and Events that the operator writes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from dormouse_api.names import READINESS_GATE
from dormouse_operator.manifests import (
    EventRecord,
    WorkerDefaults,
    choose_image,
    event_manifest,
    parse_service,
    pod_manifest,
    revision_of,
    service_manifest,
    worker_arguments,
)
from dormouse_operator.manifests.identity import identity_secret_name
from dormouse_operator.model import Key
from dormouse_operator.parse import parse_deployment

DEFAULTS = WorkerDefaults("IfNotPresent", "aa", "bb")


def deployment(status=None, generation=1, **spec):
    metadata = {"namespace": "team", "name": "tiny", "uid": "u1", "generation": generation}
    body = {"model": {"uri": "pvc://models/tiny"}, "engine": {"device": "cpu"}, **spec}
    return parse_deployment({"metadata": metadata, "spec": body, "status": status or {}})


def pod(**spec):
    return pod_manifest(deployment(**spec), image="worker:1", index=2, defaults=DEFAULTS)


def test_a_pod_is_named_by_deployment_revision_and_index_and_owned():
    made = pod()
    revision = revision_of(deployment(), "worker:1")
    assert made["metadata"]["name"] == f"tiny-{revision}-2"
    assert len(revision) == 8
    assert made["metadata"]["ownerReferences"][0]["controller"] is True
    assert made["metadata"]["labels"]["inference.dormouse.dev/revision"] == revision


def test_further_variables_of_workers_make_no_other_pod():
    """Switching tracing on must restart nobody: pods that are there stay, new ones have the variables."""
    defaults = WorkerDefaults("IfNotPresent", "aa", "bb", environment={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://otel:1"})
    traced = pod_manifest(deployment(), image="worker:1", index=2, defaults=defaults)
    added = {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://otel:1"}
    assert traced["metadata"] == pod()["metadata"]
    assert traced["spec"]["containers"][0].pop("env") == [*pod()["spec"]["containers"][0]["env"], added]


def test_secrets_for_pulling_reach_the_pod_beside_those_of_the_template_and_make_no_other_pod():
    defaults = WorkerDefaults("IfNotPresent", "aa", "bb", image_pull_secrets=("mirror", "hub"))
    pulled = pod_manifest(deployment(), image="worker:1", index=2, defaults=defaults)
    assert pulled["metadata"] == pod()["metadata"]
    assert pulled["spec"].pop("imagePullSecrets") == [{"name": "mirror"}, {"name": "hub"}]
    assert pulled["spec"] == pod()["spec"]
    own = deployment(template={"spec": {"imagePullSecrets": [{"name": "own"}]}})
    merged = pod_manifest(own, image="worker:1", index=2, defaults=defaults)["spec"]["imagePullSecrets"]
    assert merged == [{"name": "mirror"}, {"name": "hub"}, {"name": "own"}]


def test_a_pod_is_restricted():
    spec = pod()["spec"]
    container = spec["containers"][0]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def test_a_pod_has_time_to_drain_and_holds_the_claim_read_only():
    spec = pod(lifecycle={"drainTimeoutSeconds": 100})["spec"]
    assert spec["terminationGracePeriodSeconds"] == 115
    assert {"name": "model", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}} in spec["volumes"]
    mounts = spec["containers"][0]["volumeMounts"]
    assert {"name": "model", "mountPath": "/models/models", "readOnly": True} in mounts


def test_a_model_in_the_container_needs_no_volume():
    spec = pod(model={"uri": "file:///opt/model"})["spec"]
    assert [volume["name"] for volume in spec["volumes"]] == ["tmp"]


def test_a_pod_carries_hashes_and_never_a_token():
    environment = {item["name"]: item.get("value") for item in pod()["spec"]["containers"][0]["env"]}
    assert environment["DORMOUSE_OPERATOR_KEY"] == "aa"
    assert environment["DORMOUSE_GATEWAY_KEY"] == "bb"
    assert environment["DORMOUSE_SETTINGS_DIGEST"] == revision_of(deployment(), "worker:1")


def test_the_command_line_says_only_what_the_spec_says():
    engine = {"device": "cpu", "dtype": "float32", "maxModelLen": 512, "kvCacheMemory": "1Mi", "swapSpace": 0}
    assert worker_arguments(deployment(engine=engine)) == [
        "--model=/models/models/tiny",
        "--served-model-name=tiny",
        "--device=cpu",
        "--dtype=float32",
        "--max-model-len=512",
        "--kv-cache-memory=1048576",
        "--load-format=auto",
        "--profile-cache=/tmp/profile",
        "--seed=0",
        "--drain-timeout=60",
    ]


def test_sizes_to_compile_are_said_in_one_flag():
    assert "--compile-sizes=1,8" in worker_arguments(deployment(engine={"device": "cpu", "compileSizes": [8, 1]}))


@pytest.mark.parametrize(
    ("part", "field", "default", "flag"),
    [
        ("engine", "prefaultKvCache", False, "--prefault-kv-cache"),
        ("engine", "enablePrefixCaching", True, "--no-enable-prefix-caching"),
        ("engine", "cudaGraphs", True, "--no-cuda-graphs"),
        ("engine", "asyncScheduling", True, "--no-async-scheduling"),
        ("lifecycle", "keepHostCopy", True, "--no-keep-host-copy"),
        ("lifecycle", "keepPrefixCache", False, "--keep-prefix-cache"),
        ("lifecycle", "keepEncoderCache", False, "--keep-encoder-cache"),
    ],
)
def test_a_switch_is_said_only_when_it_differs_from_the_default(part, field, default, flag):
    unset = worker_arguments(deployment())
    engine = {"engine": {"device": "cpu"}, part: {"device": "cpu", field: default}}
    assert worker_arguments(deployment(**engine)) == unset
    engine[part][field] = not default
    assert worker_arguments(deployment(**engine)) == [*unset, flag]


@pytest.mark.parametrize(
    "change",
    [
        {"engine": {"device": "cpu", "maxNumSeqs": 4}},
        {"engine": {"device": "cpu", "enablePrefixCaching": False}},
        {"engine": {"device": "cpu", "prefaultKvCache": True}},
        {"engine": {"device": "cpu", "asyncScheduling": False}},
        {"model": {"uri": "pvc://models/other"}},
        {"resources": {"limits": {"memory": "1Gi"}}},
    ],
)
def test_what_decides_a_pod_makes_another_revision(change):
    assert revision_of(deployment(**change), "worker:1") != revision_of(deployment(), "worker:1")


@pytest.mark.parametrize(
    "change",
    [
        {"replicas": 7},
        {"lifecycle": {"desiredState": "Asleep"}},
        {"lifecycle": {"drainTimeoutSeconds": 5}},
        {"rollout": {"strategy": "SleepSwap", "maxSurge": 3}},
    ],
)
def test_scale_and_orders_keep_the_revision(change):
    assert revision_of(deployment(**change), "worker:1") == revision_of(deployment(), "worker:1")
    assert revision_of(deployment(), "worker:2") != revision_of(deployment(), "worker:1")


def test_the_users_image_wins_then_the_recorded_one_then_the_operators():
    recorded = {"image": "worker:1", "observedGeneration": 1}
    assert choose_image(deployment(recorded, image="mine"), [], "worker:2") == "mine"
    assert choose_image(deployment(), [], "worker:2") == "worker:2"
    assert choose_image(deployment(recorded), [], "worker:2") == "worker:1"
    assert choose_image(deployment(recorded, generation=2), [], "worker:2") == "worker:2"


def test_a_service_is_compared_with_what_would_be_applied():
    wanted = service_manifest(deployment())
    state = parse_service(wanted, deployment())
    assert (state.is_ours, state.is_current) == (True, True)
    assert parse_service(None, deployment()) is None
    theirs = {"metadata": {"name": "tiny"}, "spec": {}}
    assert (parse_service(theirs, deployment()).is_ours, parse_service(theirs, deployment()).is_current) == (
        False,
        False,
    )


def test_an_event_is_about_the_deployment():
    now = datetime(2026, 1, 1, tzinfo=UTC)
    event = event_manifest(
        EventRecord("Normal", "Slept", "x" * 2000), key=Key("team", "tiny"), uid="u1", now=now, reporter="p"
    )
    assert event["involvedObject"]["name"] == "tiny"
    assert len(event["message"]) == 1024
    assert event["metadata"]["name"].startswith("tiny.")


@pytest.mark.parametrize("mutual_tls", [False, True])
def test_the_kubelet_asks_where_a_sleeping_worker_answers_well(mutual_tls):
    """A probe that fails for hours is most of a night's Events; that it takes no requests is said by the gate."""
    wanted = replace(deployment(), mutual_tls=mutual_tls)
    spec = pod_manifest(wanted, image="worker:1", index=0, defaults=DEFAULTS)["spec"]
    probe = spec["containers"][0]["readinessProbe"]
    assert probe["httpGet"] == {"path": "/readyz", "port": 8080}
    assert "grpc" not in probe
    assert spec["readinessGates"] == [{"conditionType": READINESS_GATE}]


def test_with_mutual_tls_a_worker_mounts_its_certificate_and_the_kubelet_asks_over_http():
    plain, secured = deployment(), replace(deployment(), mutual_tls=True)
    spec = pod_manifest(secured, image="worker:1", index=0, defaults=DEFAULTS)["spec"]
    (container,) = spec["containers"]
    volume = next(item for item in spec["volumes"] if item["name"] == "certificates")
    mount = next(item for item in container["volumeMounts"] if item["name"] == "certificates")
    assert volume["secret"]["secretName"] == identity_secret_name(secured.key.name)
    files = {item["path"]: item["key"] for item in volume["secret"]["items"]}
    name = secured.key.name
    assert files == {"tls.crt": f"{name}.tls.crt", "tls.key": f"{name}.tls.key", "ca.crt": "ca.crt"}, "no other's key"
    assert {"name": "DORMOUSE_MUTUAL_TLS_DIR", "value": mount["mountPath"]} in container["env"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 8080}
    assert revision_of(secured, "worker:1") != revision_of(plain, "worker:1")
    assert "certificates" not in str(pod_manifest(plain, image="worker:1", index=0, defaults=DEFAULTS))
