"""The command line: what it gives, and that a bad value names its flag."""

from __future__ import annotations

import pytest

from dormouse_api.names import Role
from dormouse_api.testing_tickets import proof, public_key
from dormouse_worker.common.knobs import KNOBS
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.front.flags.flag_types import size_in_bytes
from dormouse_worker.front.flags.settings import command_line, parse_settings
from tests.worker.front.flags.kit import parse


def test_defaults_are_those_of_the_engine_and_the_names():
    front, engine = parse()
    assert engine == EngineSettings(model="/models/tiny")
    assert (front.served_model_names, front.port, front.control_port, front.metrics_port) == (
        ("tiny",),
        50051,
        50052,
        8080,
    )


def test_every_field_of_the_engines_settings_has_one_flag():
    flags = [action.dest for action in command_line()._actions]
    assert [name for name in KNOBS if flags.count(name) != 1] == []


def test_every_engine_flag_reaches_the_engine():
    _, engine = parse(
        *("--device=cuda", "--dtype=float32", "--max-model-len=5", "--max-num-seqs=6", "--max-num-batched-tokens=7"),
        *("--gpu-memory-utilization=0.5", "--memory-limit=2Gi", "--kv-cache-memory=1Mi", "--block-size=8"),
        *("--swap-space=3Ki", "--load-format=dummy", "--model-impl=lean", "--seed=9", "--threads=2"),
        *("--attention-backend=own", "--worker-cls=own.Worker", "--worker-extension-cls=own.Extension"),
        *("--no-enable-prefix-caching", "--prefault-kv-cache", "--compile-sizes=4, 1,4", "--no-async-scheduling"),
    )
    assert engine == EngineSettings(
        model="/models/tiny",
        device="cuda",
        dtype="float32",
        max_model_len=5,
        max_num_seqs=6,
        max_num_batched_tokens=7,
        gpu_memory_utilization=0.5,
        memory_limit_bytes=2 << 30,
        kv_cache_memory_bytes=1 << 20,
        block_size=8,
        swap_space_bytes=3 << 10,
        enable_prefix_caching=False,
        prefault_kv_cache=True,
        load_format="dummy",
        model_impl="lean",
        seed=9,
        attention_backend="own",
        worker_cls="own.Worker",
        worker_extension_cls="own.Extension",
        compile_sizes=(1, 4),
        async_scheduling=False,
        threads=2,
    )


OPERATOR_KEY = public_key(Role.OPERATOR)


def test_the_environment_gives_identity_and_roles():
    front, engine = parse(
        DORMOUSE_POD_UID="uid", DORMOUSE_SETTINGS_DIGEST="rev", DORMOUSE_OPERATOR_KEY=OPERATOR_KEY, HOME="/x"
    )
    assert (front.pod_uid, front.settings_digest, front.operator_key, front.gateway_key) == (
        *("uid", "rev", OPERATOR_KEY),
        "",
    )
    assert front.proofs().role_of(proof(Role.OPERATOR, "uid")) is Role.OPERATOR
    assert front.proofs().role_of(proof(Role.OPERATOR, "other")) is Role.CLIENT
    assert parse()[0].settings_digest == engine.digest()


@pytest.mark.parametrize(
    ("uid", "key", "named"),
    [("uid", "?", "no public key"), ("uid", "AAAA", "it has 3 bytes"), ("", OPERATOR_KEY, "DORMOUSE_POD_UID is empty")],
)
def test_a_key_that_can_prove_nothing_ends_the_program_and_is_named(uid, key, named, capsys):
    with pytest.raises(SystemExit):
        parse(DORMOUSE_POD_UID=uid, DORMOUSE_GATEWAY_KEY=key)
    said = capsys.readouterr().err
    assert "DORMOUSE_GATEWAY_KEY" in said
    assert named in said


def test_a_worker_may_start_without_an_engine():
    assert [parse(DORMOUSE_STANDBY=value)[0].starts_in_standby for value in ("", "false", "true")] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("value", "flags", "named"),
    [
        ("1", (), "DORMOUSE_STANDBY is '1'; allowed are true and false"),
        ("true", ("--standalone",), "not allowed with --standalone"),
        ("true", ("--pipeline-parallel-size=2", "--master-addr=a", "--master-port=1"), "--pipeline-parallel-size 1"),
    ],
)
def test_a_start_in_standby_that_nobody_could_end_is_refused_by_name(value, flags, named, capsys):
    with pytest.raises(SystemExit):
        parse(*flags, DORMOUSE_STANDBY=value)
    said = capsys.readouterr().err
    assert "DORMOUSE_STANDBY" in said
    assert named in said


def test_the_directory_for_profiles_is_absolute_and_empty_means_none(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert parse("--profiler-dir=traces")[0].profiler_dir == str(tmp_path.resolve() / "traces")
    assert parse()[0].profiler_dir == ""


def test_more_than_one_name_can_be_served():
    assert parse("--served-model-name", "a", "--served-model-name=b/c")[0].served_model_names == ("a", "b/c")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--port", "65536"),
        ("--port", "x"),
        ("--control-port", "-1"),
        ("--max-num-seqs", "0"),
        ("--max-model-len", "-5"),
        ("--block-size", "1.5"),
        ("--block-size", "24"),
        ("--max-num-seqs", "65537"),
        ("--max-num-batched-tokens", "1048577"),
        ("--max-model-len", "0"),
        ("--max-model-len", "16777217"),
        ("--tensor-parallel-size", "65"),
        ("--pipeline-parallel-size", "65"),
        ("--seed", str(1 << 63)),
        ("--compile-sizes", ",".join(map(str, range(1, 66)))),
        ("--compile-sizes", "4,1048577"),
        ("--gpu-memory-utilization", "0"),
        ("--gpu-memory-utilization", "1.1"),
        ("--gpu-memory-utilization", "nan"),
        ("--memory-limit", "2GB"),
        ("--kv-cache-memory", "-1Gi"),
        ("--kv-cache-memory", "9" * 400),
        ("--engine-timeout", "0"),
        ("--engine-timeout", "4.9"),
        ("--engine-timeout", "nan"),
        ("--drain-timeout", "inf"),
        ("--drain-timeout", "-1"),
        ("--dtype", "float8"),
        ("--device", "tpu"),
        ("--load-format", "pickle"),
        ("--attention-backend", ""),
        ("--worker-cls", "Worker"),
        ("--worker-cls", ""),
        ("--worker-extension-cls", "package.1st"),
        ("--model-impl", "vllm"),
        ("--served-model-name", ""),
        ("--max-waiting-requests", "0"),
        ("--max-engine-restarts", "-1"),
        ("--engine-restart-window", "soon"),
        ("--log-level", "LOUD"),
    ],
)
def test_a_bad_value_ends_the_program_and_names_flag_and_value(capsys, flag, value):
    with pytest.raises(SystemExit) as caught:
        parse(f"{flag}={value}")
    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert flag in error
    assert value in error


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lora-modules", "sql=/a"], "--lora-modules: needs --enable-lora"),
        (["--enable-lora", "--lora-modules", "sql=/a", "sql=/b"], "'sql' is there more than once"),
        (["--enable-lora", "--lora-modules", "sql=/a", "--lora-modules", "sql=/a"], "'sql' is there more than once"),
        (["--enable-lora", "--lora-modules", "base=/a"], "'base' is the base model's name"),
        (
            ["--enable-lora", "--served-model-name=m", "--served-model-name=t/m", "--lora-modules", "t/m=/a"],
            "'t/m' is the base model's",
        ),
        (["--enable-lora", "--lora-modules", "=/a"], "'=/a' is no adapter; write NAME=PATH"),
        (["--enable-lora", "--lora-modules", "/sql=/a"], "'/sql=/a' is no adapter; write NAME=PATH"),
        (["--enable-lora", "--lora-modules", "sql="], "'sql=' is no adapter; write NAME=PATH"),
    ],
    ids=str,
)
def test_adapters_that_cannot_be_named_so_are_refused(flags, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse("--model=/models/base", *flags)
    assert message in capsys.readouterr().err


def test_a_missing_model_is_named(capsys):
    with pytest.raises(SystemExit):
        parse_settings([], {})
    assert "--model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("123", 123), ("2Ki", 2048), ("1.5Gi", 3 << 29), ("1Mi", 1 << 20)]
)
def test_sizes_are_bytes_or_have_a_binary_unit(text, size):
    assert size_in_bytes(text) == size


def test_profiles_are_kept_only_where_a_directory_is_named():
    assert [parse(*flags)[1].profile_cache for flags in ((), ("--profile-cache=/kept",))] == ["", "/kept"]


def test_the_help_teaches(capsys):
    with pytest.raises(SystemExit):
        parse("--help")
    text = capsys.readouterr().out
    assert "InitializeCache" in text
    assert "DORMOUSE_OPERATOR_KEY" in text


def test_tracing_is_off_unless_the_flag_or_the_standard_variable_names_an_endpoint():
    assert parse()[0].tracing.endpoint == ""
    assert parse(OTEL_EXPORTER_OTLP_ENDPOINT="http://a:1")[0].tracing.endpoint == "http://a:1"
    assert parse("--tracing-endpoint=http://b:2", OTEL_EXPORTER_OTLP_ENDPOINT="http://a:1")[0].tracing.endpoint == (
        "http://b:2"
    )


def test_a_bad_tracing_endpoint_is_refused_by_name(capsys):
    with pytest.raises(SystemExit):
        parse("--tracing-endpoint=b:2")
    assert "--tracing-endpoint is 'b:2'; allowed is http://HOST:PORT" in capsys.readouterr().err
