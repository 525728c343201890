"""`dormouse serve`: the command line that it hands over to, and what it says when it can not."""

import sys

import pytest
from typer.testing import CliRunner

from dormouse_cli.errors import CommandFailed
from dormouse_cli.main import app
from dormouse_cli.serve import worker_command
from dormouse_worker.front.settings import parse_settings


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
