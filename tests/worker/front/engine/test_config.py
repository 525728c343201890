"""Another command line for a front that runs: what follows it, what does not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from dormouse_api.names import Role
from dormouse_api.status import CallError
from dormouse_api.testing_tickets import public_key
from dormouse_worker.common.errors import ModelNotFound
from dormouse_worker.front.engine.config import FIXED, EngineConfig, Served, settings_of
from dormouse_worker.front.flags.settings import FrontSettings, parse_settings
from dormouse_worker.front.testing import engine_settings, front_settings

ENVIRON = {
    "DORMOUSE_POD_UID": "uid",
    "DORMOUSE_SETTINGS_DIGEST": "old",
    "DORMOUSE_OPERATOR_KEY": public_key(Role.OPERATOR),
    "DORMOUSE_GATEWAY_KEY": public_key(Role.GATEWAY),
    "DORMOUSE_MUTUAL_TLS_DIR": "/certificates",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317",
}
PRESENT, _ = parse_settings(["--model=/models/old"], ENVIRON)
OTHERWISE = {
    "--host": "127.0.0.1",
    "--port": "1",
    "--control-port": "2",
    "--metrics-port": "3",
    "--max-waiting-requests": "4",
    "--max-open-calls": "5",
    "--max-engine-restarts": "6",
    "--engine-restart-window": "7",
    "--standalone": None,
    "--enable-reflection": None,
    "--profiler-dir": "/traces",
    "--log-level": "DEBUG",
    "--master-port": "8",
    "--device-grants": None,
    "--spare-engine": None,
    "--engine-python": "/vllm/bin/python",
    "--lora-modules": "sql=/adapters/sql",
    "--lora-cache": "/caches/adapters",
    "--lora-tokens": "/tokens",
    "--local-socket": "/run/door",
    "--kv-events-config": '{"topic": "other"}',
}
ENVIRONMENTAL = {
    "environ",
    "pod_uid",
    "settings_digest",
    "operator_key",
    "gateway_key",
    "mutual_tls_dir",
    "starts_in_standby",
    "tracing",
}
FOLLOWING = {
    "served_model_names",
    "drain_timeout_s",
    "prepared_timeout_s",
    "default_timeout_s",
    "max_timeout_s",
    "engine_timeout_s",
    "engine_load_timeout_s",
    "engine_command_timeout_s",
    "images",
    "sounds",
}


def test_every_setting_either_follows_the_engine_or_is_the_process_s_own():
    fields = {field.name for field in dataclasses.fields(FrontSettings)}
    assert fields == FOLLOWING | set(FIXED) | ENVIRONMENTAL
    assert set(OTHERWISE) == set(FIXED.values())


@pytest.mark.parametrize("flag", OTHERWISE)
def test_what_the_process_started_with_can_not_change(flag):
    value = OTHERWISE[flag]
    argument = flag if value is None else f"{flag}={value}"
    with pytest.raises(CallError, match=f"arguments: {flag} is .* only a new pod"):
        settings_of(["--model=/models/new", "--enable-lora", argument], "new", PRESENT)


def test_a_group_of_several_pods_can_not_change_at_all():
    """The ranks of other pods keep what they were started with."""
    flags = ["--pipeline-parallel-size=2", "--master-addr=leader", "--master-port=29500"]
    present, _ = parse_settings(["--model=/models/old", *flags], ENVIRON)
    with pytest.raises(CallError, match=r"the group has 2 pods, .* only new pods"):
        settings_of(["--model=/models/new", *flags], "new", present)


def test_the_rest_follows_and_the_environment_stays():
    arguments = ["--model=/models/new", "--drain-timeout=7", "--max-model-len=99", "--served-model-name=other"]
    present, _ = parse_settings(["--model=/models/old"], {**ENVIRON, "DORMOUSE_STANDBY": "true"})
    front, engine = settings_of(arguments, "new", present)
    expected = {"served_model_names": ("other",), "drain_timeout_s": 7.0, "settings_digest": "new"}
    assert front == dataclasses.replace(present, **expected)
    assert (engine.model, engine.max_model_len) == ("/models/new", 99)


def test_settings_without_a_name_have_their_own_digest():
    front, engine = settings_of(["--model=/models/new"], "", PRESENT)
    assert front.settings_digest == engine.digest()


def test_an_edition_says_what_the_status_needs_also_without_a_model():
    edition = EngineConfig(front_settings(), engine_settings(Path("/models/tiny")), ModelNotFound("nowhere"))
    assert (edition.identity.settings_digest, edition.identity.model_digest) == ("digest", "")
    assert (edition.model_name, edition.engine_limits.load_s) == ("tiny", 1800.0)
    assert repr(Served(edition)) == "Served(digest)"
