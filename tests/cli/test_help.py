"""Everything that a user can call is described; help comes at once; completion scripts are scripts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dormouse_cli import checks
from dormouse_cli.commands.care import Shell
from dormouse_cli.exit_codes import ExitCode
from dormouse_cli.main import app
from tools.pages.commands import commands

ROOT = Path(__file__).resolve().parents[2]
ENV = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}
COMMANDS = commands()
PARAMETERS = [(name, parameter) for name, command in COMMANDS.items() for parameter in command.params]
HEAVY = {"kubernetes", "aiohttp", "asyncio", "grpc", "google", "yaml", "dormouse_kube"}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_described(name):
    assert len(COMMANDS[name].help or "") > 20


@pytest.mark.parametrize(
    ("command", "parameter"), PARAMETERS, ids=[f"{name} {parameter.name}" for name, parameter in PARAMETERS]
)
def test_each_option_and_argument_is_described(command, parameter):
    assert len(getattr(parameter, "help", None) or "") > 9, f"{command}: {parameter.name}"


@pytest.mark.parametrize("code", list(ExitCode))
def test_each_exit_code_is_described_in_help_and_docs(code):
    assert code.meaning
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["--help"]).stdout
    assert f"{code.value}: {code.meaning}" in shown
    assert f"| {code.value} | {code.meaning} |" in (ROOT / "docs/reference/cli.md").read_text()


def test_the_docs_show_each_command():
    text = (ROOT / "docs/how-to/cli.md").read_text()
    assert [name for name in COMMANDS if f"dormouse {name}" not in text] == []


def test_the_docs_name_each_right():
    text = (ROOT / "docs/reference/cli.md").read_text()
    rows = [f"| {right.verb} | {right.resource} | {right.commands} |" for right in checks.RIGHTS]
    assert [row for row in rows if row not in text] == []


def test_help_waits_for_nothing_heavy():
    command = [sys.executable, "-X", "importtime", "-m", "dormouse_cli", "--help"]
    result = subprocess.run(command, env=ENV, capture_output=True, check=True, text=True)
    imported = {
        line.rpartition("|")[2].strip() for line in result.stderr.splitlines() if line.startswith("import time")
    }
    assert "typer" in imported, "the list is read as it is meant"
    assert {name for name in imported if name in HEAVY or name.split(".")[0] in HEAVY} == set()


def test_it_is_a_plugin_of_kubectl_too():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["kubectl-dormouse"] == scripts["dormouse"] == "dormouse_cli.main:main"


def test_the_version_is_told():
    assert CliRunner().invoke(app, ["--version"]).stdout.startswith("dormouse ")


@pytest.mark.parametrize("shell", list(Shell))
def test_completion_writes_a_script_that_its_shell_reads(shell):
    result = CliRunner().invoke(app, ["completion", shell.value])
    assert result.exit_code == 0
    assert "_DORMOUSE_COMPLETE" in result.stdout
    if shutil.which(shell.value):
        subprocess.run([shell.value, "-n"], input=result.stdout, text=True, check=True, capture_output=True)


def test_the_script_completes_the_names_of_commands():
    asked = {"_DORMOUSE_COMPLETE": "complete_bash", "COMP_WORDS": "dormouse sta", "COMP_CWORD": "1"}
    code = "import sys; sys.argv = ['dormouse']; from dormouse_cli.main import main; main()"
    result = subprocess.run([sys.executable, "-c", code], env=ENV | asked, capture_output=True, check=False, text=True)
    assert result.stdout.split() == ["status"]


def test_a_wrong_option_is_a_usage_error():
    assert CliRunner().invoke(app, ["status", "--frobnicate"]).exit_code == ExitCode.USAGE


def test_wrong_forms_of_output_name_the_right_ones():
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["status", "-o", "xml"])
    assert result.exit_code == ExitCode.USAGE
    assert all(form in result.stderr for form in ("text", "json", "yaml"))


def test_a_kubeconfig_that_is_not_there_is_said_without_a_traceback(tmp_path):
    command = [sys.executable, "-m", "dormouse_cli", "status", "--kubeconfig", str(tmp_path / "none")]
    result = subprocess.run(command, env=ENV, capture_output=True, check=False, text=True)
    assert result.returncode == ExitCode.NO_CLUSTER
    assert result.stderr.startswith("error: no kubeconfig: ")
    assert result.stderr.count("\n") == 1


def kubeconfig(path, server, context="here"):
    cluster = {"name": "c", "cluster": {"server": server}}
    user = {"name": "u", "user": {"token": "t"}}
    known = {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}
    whole = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "users": [user], "contexts": [known]}
    path.write_text(json.dumps(whole | {"current-context": context}))
    return str(path)


@pytest.mark.parametrize(
    ("options", "words"),
    [((), "no cluster answers at http://127.0.0.1:1: "), (("--context", "there"), "there")],
)
def test_a_cluster_that_is_not_there_and_a_context_that_is_not_are_named(tmp_path, options, words):
    file = kubeconfig(tmp_path / "config", "http://127.0.0.1:1")
    command = [sys.executable, "-m", "dormouse_cli", "status", "--kubeconfig", file, *options]
    result = subprocess.run(command, env=ENV, capture_output=True, check=False, text=True)
    assert result.returncode == ExitCode.NO_CLUSTER
    assert words in result.stderr
    assert "Traceback" not in result.stderr
