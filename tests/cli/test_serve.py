"""`dormouse serve`: the command line that it hands over to, and what it says when it cannot."""

import socket
import sys

import pytest
from typer.testing import CliRunner

from dormouse_cli.errors import CommandFailed
from dormouse_cli.main import app
from dormouse_cli.serve import Place, open_listener, prepare, read_flags, shown_address, take_port, worker_command
from dormouse_worker.front.flags.settings import parse_settings


def command(*args):
    return worker_command(*args[:1], args[1:], has=lambda _: True)


def test_the_flags_of_the_user_reach_the_worker_and_win_over_the_defaults():
    *interpreter, program = (words := command("models/tiny", "--port", "7", "--host", "::1", "--dtype", "bfloat16"))[:4]
    assert (interpreter, program) == ([sys.executable, "-P", "-m"], "dormouse_worker")
    front, engine = parse_settings(words[4:], {})
    assert (front.standalone, front.enable_reflection, front.port, front.host) == (True, True, 7, "::1")
    assert (engine.model, engine.dtype) == ("models/tiny", "bfloat16")


def test_by_default_only_this_machine_reaches_it():
    front, _ = parse_settings(command("m")[4:], {})
    assert (front.host, front.port, front.control_port, front.metrics_port) == ("127.0.0.1", 50051, 0, 0)


def test_what_is_missing_is_named_with_the_extra():
    with pytest.raises(CommandFailed, match=r"dormouse\[worker\].*missing: torch, uvloop$"):
        worker_command("m", [], has=lambda module: module not in {"torch", "uvloop"})


def test_a_flag_before_the_model_is_named():
    result = CliRunner().invoke(app, ["serve", "--port", "6000", "models/tiny"])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: --port stands where the model's directory belongs")


def test_the_help_stands_also_behind_the_command():
    result = CliRunner().invoke(app, ["serve", "--help"])
    assert result.exit_code == 0
    assert "--max-model-len" in result.stdout


def test_our_own_flags_stand_among_the_workers_and_do_not_reach_it():
    words = ["--dtype", "float32", "--http-port", "0", "--port=7", "--revision", "v1", "--served-model-name", "a"]
    own, place, flags = read_flags([*words, "--host", "::1", "--served-model-name", "b"])
    assert (own.http_port, own.revision) == (0, "v1")
    assert place == Place("::1", 7, ("a", "b"))
    assert flags == [
        "--dtype",
        "float32",
        "--port=7",
        "--served-model-name",
        "a",
        "--host",
        "::1",
        "--served-model-name",
        "b",
    ]
    _, place, flags = read_flags(["--lora-modules", "sql=/a", "legal=/b", "--port", "7"])
    assert (place.adapters, place.port, "sql=/a" in flags) == (("sql", "legal"), 7, True)
    own, place, flags = read_flags(["--no-http"])
    assert (own.http_port, own.revision, place, flags) == (None, "main", Place("127.0.0.1", 50051, ()), [])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--http-port", "x"], "--http-port"),
        (["--http-port", "65536"], "--http-port is 65536; allowed are 0 .* to 65535"),
        (["--port", "x"], "--port"),
    ],
)
def test_a_bad_port_is_named(words, told):
    with pytest.raises(CommandFailed, match=told):
        read_flags(words)


def test_help_behind_the_model_is_the_workers_and_begins_nothing():
    command = prepare("org/name", ["--help"], {}, lambda _: None, has=lambda _: True)
    assert command[-3:] == ["--model", "org/name", "--help"]


def test_without_the_gateways_extra_the_way_without_http_is_named():
    with pytest.raises(
        CommandFailed, match=r"'gateway'.*dormouse\[gateway\].*--no-http\); missing: starlette, uvicorn$"
    ):
        prepare("m", [], {}, lambda _: None, has=lambda module: module not in {"starlette", "uvicorn"})


def test_without_http_neither_its_extra_nor_a_second_process_is_needed(tmp_path):
    command = prepare(str(tmp_path), ["--no-http"], {}, lambda _: None, has=lambda module: module != "starlette")
    assert command[-2:] == ["--served-model-name", tmp_path.name]


def test_a_worker_that_asks_for_certificates_has_no_http_in_front():
    with pytest.raises(CommandFailed, match="DORMOUSE_MUTUAL_TLS_DIR is set"):
        prepare("m", [], {"DORMOUSE_MUTUAL_TLS_DIR": "/tls"}, lambda _: None, has=lambda _: True)


def test_a_taken_port_is_named_before_anything_is_begun():
    with open_listener("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CommandFailed, match=f"--http-port {port} on 127.0.0.1: .*choose another one, or --no-http"):
            prepare("org/name", ["--http-port", str(port)], {}, lambda _: None, has=lambda _: True)


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1:"), ("0.0.0.0", "localhost:"), ("::1", "[::1]:")])
def test_the_address_that_is_shown_can_be_called(host, shown):
    with open_listener(host, 0) as listener:
        assert shown_address(listener, host) == f"{shown}{listener.getsockname()[1]}"


def test_the_port_of_a_worker_that_may_take_any_is_given_to_nobody_before_it():
    """It listens seconds later: another server that took the port would answer in its place."""
    port = take_port("127.0.0.1")
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with open_listener("127.0.0.1", port):
        pass
    with pytest.raises(CommandFailed, match=r"--port 0 on 192\.0\.2\.1: .*assign"):
        take_port("192.0.2.1")
