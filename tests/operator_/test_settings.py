"""Settings come from the environment, once; a bad one names its variable."""

from __future__ import annotations

import pytest

from dormouse_operator.settings import SettingsError, parse_settings, read_tokens


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


def test_tokens_are_read_from_the_mounted_secret_and_never_shown(tmp_path):
    for name in ("operator-token", "operator-token-sha256", "gateway-token-sha256"):
        (tmp_path / name).write_text(f"{name}!\n")
    tokens = read_tokens(tmp_path)
    assert tokens.operator_token == "operator-token!"
    assert "!" not in repr(tokens)


def test_a_missing_or_empty_token_names_its_file(tmp_path):
    with pytest.raises(SettingsError, match="operator-token"):
        read_tokens(tmp_path)
    (tmp_path / "operator-token").write_text("")
    with pytest.raises(SettingsError, match="is empty"):
        read_tokens(tmp_path)
