"""Settings come from the environment, once, or the program does not start."""

from pathlib import Path

import pytest

from dormouse_api.testing_tickets import GATEWAY_SEED
from dormouse_gateway.seeds import Seeds, read_seeds
from dormouse_gateway.settings import Settings, read_policy
from dormouse_gateway.variables import BadSetting


def test_an_empty_environment_gives_the_defaults():
    assert Settings.from_env({"DORMOUSE_PORT": " "}) == Settings()


def test_every_setting_can_be_given():
    env = {
        "DORMOUSE_WATCH_NAMESPACES": "a, b,",
        "DORMOUSE_TOKENS_DIR": "/tokens",
        "DORMOUSE_HOST": "127.0.0.1",
        "DORMOUSE_PORT": "1",
        "DORMOUSE_CONTROL_PORT": "2",
        "DORMOUSE_METRICS_PORT": "3",
        "DORMOUSE_HTTP_PORT": "4",
        "DORMOUSE_API_KEYS_DIR": "/keys",
        "DORMOUSE_TLS_CERT_FILE": "/tls/tls.crt",
        "DORMOUSE_TLS_KEY_FILE": "/tls/tls.key",
        "DORMOUSE_RELOAD_INTERVAL": "7",
        "DORMOUSE_HTTP_MAX_CONNECTIONS": "5",
        "DORMOUSE_HTTP_TIMEOUT": "6",
        "DORMOUSE_LOG_LEVEL": "DEBUG",
        "DORMOUSE_DRAIN_TIMEOUT": "4.5",
        "DORMOUSE_LAME_DUCK": "0",
        "DORMOUSE_DEFAULT_DEADLINE": "60",
        "DORMOUSE_MAX_MOVES": "0",
        "DORMOUSE_MIGRATE_STREAM_BYTES": "5",
        "DORMOUSE_MIGRATE_TOTAL_BYTES": "6",
        "DORMOUSE_MIGRATE_AFTER": "7",
        "DORMOUSE_ENABLE_REFLECTION": "false",
        "DORMOUSE_ROUTER_POLICY": "round-robin",
        "DORMOUSE_AFFINITY_BOUND": "1.5",
        "DORMOUSE_SATURATED_TIMEOUT": "5",
        "DORMOUSE_WORKER_QUEUE": "6",
        "DORMOUSE_MAX_HELD_BYTES": "7",
        "DORMOUSE_MAX_HELD_TOTAL": "8",
        "DORMOUSE_MAX_HELD_TOTAL_BYTES": "9",
    }
    assert Settings.from_env(env) == Settings(
        watch_namespaces=("a", "b"),
        tokens_dir=Path("/tokens"),
        host="127.0.0.1",
        port=1,
        control_port=2,
        metrics_port=3,
        http_port=4,
        api_keys_dir=Path("/keys"),
        tls_cert_file=Path("/tls/tls.crt"),
        tls_key_file=Path("/tls/tls.key"),
        reload_interval_s=7.0,
        http_max_connections=5,
        http_timeout_s=6.0,
        log_level="debug",
        drain_timeout_s=4.5,
        lame_duck_s=0.0,
        default_deadline_s=60.0,
        max_moves=0,
        migrate_stream_bytes=5,
        migrate_total_bytes=6,
        migrate_after_s=7.0,
        enable_reflection=False,
        router_policy="round-robin",
        affinity_bound=1.5,
        saturated_timeout_s=5.0,
        worker_queue=6,
        max_held_bytes=7,
        max_held_total=8,
        max_held_total_bytes=9,
    )


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("DORMOUSE_PORT", "65536", "65535"),
        ("DORMOUSE_PORT", "-1", "0"),
        ("DORMOUSE_METRICS_PORT", "http", "whole numbers"),
        ("DORMOUSE_HTTP_MAX_CONNECTIONS", "0", "from 1"),
        ("DORMOUSE_MAX_MOVES", "101", "100"),
        ("DORMOUSE_MIGRATE_STREAM_BYTES", "-1", "whole numbers"),
        ("DORMOUSE_DRAIN_TIMEOUT", "soon", "seconds"),
        ("DORMOUSE_DRAIN_TIMEOUT", "nan", "86400"),
        ("DORMOUSE_DEFAULT_DEADLINE", "0", "from 1"),
        ("DORMOUSE_AFFINITY_BOUND", "0.9", "from 1 to 100"),
        ("DORMOUSE_AFFINITY_BOUND", "much", "from 1 to 100"),
        ("DORMOUSE_WORKER_QUEUE", "-1", "whole numbers"),
        ("DORMOUSE_LOG_LEVEL", "loud", "debug, info, warning, error"),
        ("DORMOUSE_ENABLE_REFLECTION", "maybe", "true and false"),
    ],
)
def test_a_bad_value_names_the_variable_the_value_and_what_is_allowed(name, value, allowed):
    with pytest.raises(BadSetting) as caught:
        Settings.from_env({name: value})
    assert [word for word in (name, repr(value), allowed) if word not in str(caught.value)] == []


def test_an_unknown_router_policy_is_named_with_those_that_there_are():
    with pytest.raises(BadSetting, match=r"ROUTER_POLICY: .*'mine'; known are prefix-affinity, least-tokens, round"):
        read_policy(Settings(router_policy="mine"))


@pytest.mark.parametrize("name", ["DORMOUSE_TLS_CERT_FILE", "DORMOUSE_TLS_KEY_FILE"])
def test_a_certificate_needs_its_key_and_the_other_way_round(name):
    with pytest.raises(BadSetting, match="allowed are both or none"):
        Settings.from_env({name: "/somewhere"})


def test_seeds_are_read_from_the_mounted_files_and_never_shown(tmp_path):
    (tmp_path / "gateway-seed").write_text(f"{GATEWAY_SEED}\n")
    assert read_seeds(tmp_path) == Seeds((GATEWAY_SEED,))
    (tmp_path / "gateway-seed-previous").write_text("")
    assert read_seeds(tmp_path) == Seeds((GATEWAY_SEED,))
    (tmp_path / "gateway-seed-previous").write_text(GATEWAY_SEED[::-1])
    seeds = read_seeds(tmp_path)
    assert seeds == Seeds((GATEWAY_SEED, GATEWAY_SEED[::-1]))
    assert repr(seeds) == "Seeds(2)"


def test_without_a_directory_there_are_no_seeds():
    assert read_seeds(None) == Seeds()
    assert not read_seeds(None).tickets()


@pytest.mark.parametrize("content", [None, b"", b"\xff", b"short"])
def test_a_missing_or_useless_seed_stops_the_program_and_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / "gateway-seed").write_bytes(content)
    with pytest.raises(BadSetting, match=r"DORMOUSE_TOKENS_DIR.*gateway-seed"):
        read_seeds(tmp_path)
