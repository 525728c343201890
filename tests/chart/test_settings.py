"""What the chart tells the parts is what they understand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from dormouse_api.short_names import NameRules, Scope
from dormouse_gateway.leaving import LATEST_S
from dormouse_gateway.settings import Settings as GatewaySettings
from dormouse_operator.settings import parse_settings
from tools.bootstrap import ROOT

pytestmark = pytest.mark.cluster

Render = Callable[..., list[dict[str, Any]]]


def container(manifests: list[dict[str, Any]], part: str) -> dict[str, Any]:
    found = [m for m in manifests if m["kind"] == "Deployment" and m["metadata"]["name"] == f"r-dormouse-{part}"]
    containers: list[dict[str, Any]] = found[0]["spec"]["template"]["spec"]["containers"]
    return containers[0]


def environment(container: dict[str, Any]) -> dict[str, str]:
    """Return the variables as the kubelet would set them: every field of the pod is there."""
    return {entry["name"]: entry.get("value", "from-the-pod") for entry in container["env"]}


def test_a_share_of_nodes_memory_comes_with_the_right_to_get_nodes_and_with_no_other(render: Render):
    manifests = render("operator.maxNodeMemoryPercent=80")
    assert parse_settings(environment(container(manifests, "operator"))).max_node_memory_percent == 80
    rules = [rule for one in manifests if one["kind"] == "ClusterRole" for rule in one["rules"]]
    assert [rule["verbs"] for rule in rules if "nodes" in rule["resources"]] == [["get"]]


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_the_operator_understands_its_environment(render: Render, level: str):
    manifests = render(
        f"operator.logLevel={level}",
        "operator.logFormat=json",
        "operator.maxSleepingHostBytes=123456789012",
        "watch.namespaces={a,b}",
        "image.tag=0.1.0-x",
    )
    settings = parse_settings(environment(container(manifests, "operator")))
    assert settings.watch_namespaces == ("a", "b")
    assert settings.worker_image == "ghcr.io/dormouse/worker:0.1.0-x"
    assert settings.release == "r-dormouse"
    assert settings.gateway_control == "r-dormouse-gateways.dormouse-system.svc:50052"
    assert settings.log_level.lower() == level
    assert settings.log_format == "json"
    assert settings.max_sleeping_host_bytes == 123456789012


def test_the_operator_understands_what_certificates_it_should_issue(render: Render):
    plain = parse_settings(environment(container(render("mtls.enabled=false"), "operator")))
    assert not plain.mutual_tls
    given = ("mtls.certificateSeconds=3600", "mtls.authoritySecretName=corp")
    settings = parse_settings(environment(container(render(*given), "operator")))
    assert settings.mutual_tls
    assert (settings.certificate_seconds, settings.authority_secret) == (3600, "corp")
    assert settings.authority_seconds == plain.authority_seconds


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_the_gateway_understands_its_environment(render: Render, level: str):
    manifests = render(f"gateway.logLevel={level}", "watch.namespaces={a,b}")
    settings = GatewaySettings.from_env(environment(container(manifests, "gateway")))
    assert settings.watch_namespaces == ("a", "b")
    assert settings.log_level == level


def test_the_chart_gives_the_gateway_the_limits_that_it_would_choose_itself(render: Render):
    settings = GatewaySettings.from_env(environment(container(render(), "gateway")))
    own = GatewaySettings()
    names = ["saturated_timeout_s", "worker_queue", "max_held_bytes", "max_held_total", "max_held_total_bytes"]
    names += ["max_moves", "migrate_stream_bytes", "migrate_total_bytes", "migrate_after_s"]
    names += ["router_policy", "affinity_bound", "names"]
    assert {name: getattr(settings, name) for name in names} == {name: getattr(own, name) for name in names}


@pytest.mark.parametrize(
    ("value", "name", "expected"),
    [
        ("hold.saturatedTimeoutSeconds=15", "saturated_timeout_s", 15),
        ("hold.workerQueue=0", "worker_queue", 0),
        ("hold.maxBytes=1000000000", "max_held_bytes", 10**9),
        ("hold.maxTotal=7", "max_held_total", 7),
        ("hold.maxTotalBytes=123456789012", "max_held_total_bytes", 123456789012),
        ("migrate.maxMoves=0", "max_moves", 0),
        ("migrate.streamBytes=5", "migrate_stream_bytes", 5),
        ("migrate.totalBytes=6", "migrate_total_bytes", 6),
        ("migrate.afterSeconds=5", "migrate_after_s", 5),
        ("routing.policy=least-tokens", "router_policy", "least-tokens"),
        ("routing.affinityBound=2", "affinity_bound", 2),
        ("images.hosts={a.example.org,*.b.org}", "image_hosts", {"a.example.org", "*.b.org"}),
        ("images.maxBytes=1000", "max_image_bytes", 1000),
        ("shortNames=none", "names", NameRules(Scope.NONE)),
        ("shortNameGraceSeconds=5", "names", NameRules(grace_s=5)),
    ],
)
def test_a_limit_of_the_chart_reaches_the_gateway(render: Render, value: str, name: str, expected: object):
    settings = GatewaySettings.from_env(environment(container(render(f"gateway.{value}"), "gateway")))
    assert getattr(settings, name) == expected


def test_the_gateway_reads_the_secrets_where_they_are_mounted(render: Render):
    gateway = container(render("gateway.apiKeys.secretName=keys", "gateway.tls.secretName=cert"), "gateway")
    settings = GatewaySettings.from_env(environment(gateway))
    mounts = {mount["name"]: mount["mountPath"] for mount in gateway["volumeMounts"]}
    assert str(settings.api_keys_dir) == mounts["api-keys"]
    assert [str(settings.tls_cert_file), str(settings.tls_key_file)] == [
        f"{mounts['tls']}/tls.crt",
        f"{mounts['tls']}/tls.key",
    ]


def test_without_secrets_the_gateway_is_open_and_plain(default: list[dict[str, Any]]):
    gateway = container(default, "gateway")
    settings = GatewaySettings.from_env(environment(gateway))
    assert (settings.api_keys_dir, settings.tls_cert_file) == (None, None)


def test_the_gateways_probes_ask_the_port_that_no_stream_keeps_busy(default: list[dict[str, Any]]):
    gateway = container(default, "gateway")
    asked = {gateway[f"{kind}Probe"]["httpGet"]["port"] for kind in ("startup", "liveness", "readiness")}
    assert asked == {"http-metrics"}


@pytest.mark.parametrize("grace_s", [1, 20, 600])
def test_the_gateway_has_drained_before_its_pod_is_killed(render: Render, grace_s: int):
    manifests = render(f"gateway.terminationGracePeriodSeconds={grace_s}")
    settings = GatewaySettings.from_env(environment(container(manifests, "gateway")))
    assert settings.drain_timeout_s <= max(1, grace_s - settings.lame_duck_s)


def test_a_gateway_that_ends_still_waits_for_a_model_as_long_as_it_holds_by_default(default: list[dict[str, Any]]):
    crd = yaml.safe_load((ROOT / "crds/inferencedeployments.yaml").read_text("utf-8"))
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    hold_s = spec["properties"]["lifecycle"]["properties"]["holdTimeoutSeconds"]["default"]
    settings = GatewaySettings.from_env(environment(container(default, "gateway")))
    assert settings.drain_timeout_s > LATEST_S + hold_s, "the last request comes with the oldest connection"


def test_the_parts_listen_where_the_pods_say(default: list[dict[str, Any]]):
    operator, gateway = container(default, "operator"), container(default, "gateway")
    settings = GatewaySettings.from_env(environment(gateway))
    listening = [settings.port, settings.control_port, settings.metrics_port, settings.http_port]
    assert [port["containerPort"] for port in gateway["ports"]] == listening
    assert [port["containerPort"] for port in operator["ports"]] == [parse_settings(environment(operator)).metrics_port]


def test_tracing_is_off_unless_an_endpoint_is_given_and_reaches_gateway_and_workers(render: Render):
    assert not [name for part in ("gateway", "operator") for name in traced(render(), part)]
    manifests = render("tracing.endpoint=http://otel.observability:4317", "tracing.samplingRatio=0.25")
    gateway = GatewaySettings.from_env(environment(container(manifests, "gateway")))
    assert gateway.tracing.endpoint == "http://otel.observability:4317"
    standard = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://otel.observability:4317",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.25",
    }
    assert traced(manifests, "gateway") == standard
    assert parse_settings(environment(container(manifests, "operator"))).tracing == standard


def traced(manifests: list[dict[str, Any]], part: str) -> dict[str, str]:
    """Return the variables that are about tracing."""
    named = environment(container(manifests, part)).items()
    return {name: value for name, value in named if name.startswith("OTEL_") or "TRACING" in name}


@pytest.mark.parametrize("values", [(), ("gateway.shortNames=namespaced", "gateway.shortNameGraceSeconds=5")])
def test_operator_and_gateways_decide_about_names_by_the_same_rules(render: Render, values: tuple[str, ...]):
    manifests = render(*values)
    theirs = GatewaySettings.from_env(environment(container(manifests, "gateway"))).names
    assert parse_settings(environment(container(manifests, "operator"))).names == theirs
