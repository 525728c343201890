"""Settings come from the environment, once; a bad one names its variable."""

from __future__ import annotations

import pytest

from dormouse_api.testing_tickets import GATEWAY_SEED, OPERATOR_SEED
from dormouse_operator.seeds import Seeds, read_seeds
from dormouse_operator.settings import SettingsError, parse_settings


def test_the_empty_environment_gives_defaults():
    settings = parse_settings({})
    assert settings.watch_namespaces == ()
    assert settings.lease_name == "dormouse-operator"
    assert (settings.metrics_port, settings.agreement_seconds, settings.log_level) == (8080, 10.0, "INFO")


def test_the_chart_s_environment_is_understood():
    env = {"DORMOUSE_WATCH_NAMESPACES": "a, b,", "DORMOUSE_RELEASE": "r", "DORMOUSE_METRICS_PORT": "0"}
    settings = parse_settings(env)
    assert settings.watch_namespaces == ("a", "b")
    assert (settings.lease_name, settings.metrics_port) == ("r-operator", 0)
    assert settings.gateway_control == ""
    assert settings.max_sleeping_host_bytes == 0
    assert parse_settings({"DORMOUSE_MAX_SLEEPING_HOST_BYTES": str(2**40 + 1)}).max_sleeping_host_bytes == 2**40 + 1
    assert parse_settings({"DORMOUSE_GATEWAY_CONTROL": "gateways:50052"}).gateway_control == "gateways:50052"


def test_tracing_of_workers_is_the_standard_variables_and_none_without_an_endpoint():
    assert parse_settings({"DORMOUSE_WORKER_TRACING_RATIO": "0.5"}).tracing == {}
    given = {"DORMOUSE_WORKER_TRACING_ENDPOINT": "http://otel:4317", "DORMOUSE_WORKER_TRACING_RATIO": "0.5"}
    assert parse_settings(given).tracing == {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://otel:4317",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.5",
    }


def test_names_of_secrets_stand_between_commas():
    given = {"DORMOUSE_WORKER_IMAGE_PULL_SECRETS": "mirror, hub.example"}
    assert parse_settings(given).worker_image_pull_secrets == ("mirror", "hub.example")
    assert parse_settings({}).worker_image_pull_secrets == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DORMOUSE_METRICS_PORT", "70000"),
        ("DORMOUSE_METRICS_PORT", "http"),
        ("DORMOUSE_LOG_LEVEL", "LOUD"),
        ("DORMOUSE_GATEWAY_CONTROL", "gateway"),
        ("DORMOUSE_GATEWAY_CONTROL", ":50052"),
        ("DORMOUSE_GATEWAY_CONTROL", "gateway:70000"),
        ("DORMOUSE_AGREEMENT_SECONDS", "-1"),
        ("DORMOUSE_RESYNC_SECONDS", "nan"),
        ("DORMOUSE_MAX_SLEEPING_HOST_BYTES", "-1"),
        ("DORMOUSE_MAX_SLEEPING_HOST_BYTES", "64Gi"),
        ("DORMOUSE_WORKER_IMAGE_PULL_POLICY", "Sometimes"),
        ("DORMOUSE_WORKER_IMAGE_PULL_SECRETS", "good,Bad"),
        ("DORMOUSE_WORKER_IMAGE_PULL_SECRETS", "a" * 254),
        ("DORMOUSE_WORKER_TRACING_ENDPOINT", "collector:4317"),
        ("DORMOUSE_WORKER_TRACING_RATIO", "2"),
    ],
)
def test_a_bad_value_names_the_variable_the_value_and_what_is_allowed(name, value):
    with pytest.raises(SettingsError, match=rf"{name} is '{value}'; allowed"):
        parse_settings({name: value})


def test_seeds_are_read_from_the_mounted_secret_and_never_shown(tmp_path):
    (tmp_path / "operator-seed").write_text(f"{OPERATOR_SEED}\n")
    (tmp_path / "gateway-seed").write_text(GATEWAY_SEED)
    (tmp_path / "gateway-seed-previous").write_text("")
    assert read_seeds(tmp_path) == Seeds((OPERATOR_SEED,), (GATEWAY_SEED,))
    (tmp_path / "operator-seed-previous").write_text(OPERATOR_SEED[::-1])
    seeds = read_seeds(tmp_path)
    assert seeds.operator == (OPERATOR_SEED, OPERATOR_SEED[::-1])
    assert len(set(seeds.operator_keys)) == 2
    assert repr(seeds) == "Seeds(2 of the operator, 1 of gateways)"


def test_a_missing_empty_or_short_seed_names_its_file(tmp_path):
    with pytest.raises(SettingsError, match="operator-seed"):
        read_seeds(tmp_path)
    (tmp_path / "operator-seed").write_text("")
    with pytest.raises(SettingsError, match="is empty"):
        read_seeds(tmp_path)
    for name in ("operator-seed", "gateway-seed"):
        (tmp_path / name).write_text("short")
    with pytest.raises(SettingsError, match="5 characters; at least 32"):
        read_seeds(tmp_path)
