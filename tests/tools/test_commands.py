"""Every command and every block of code in the documents is one that its program, or its language, understands.

Each is parsed by the program that it is for. The flags of helm and kubectl are compared with theirs in
tests/chart/test_docs_commands.py; docs/install.md has tests of its own, which run what can be run.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import re
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import typer.main
import yaml

from dormouse_cli.main import app
from dormouse_gateway.__main__ import command_line as gateway_flags
from dormouse_operator.parse import parse_deployment, parse_offer, parse_pool
from dormouse_worker.front.flags.settings import command_line as worker_flags
from tests.tools.documents import Block, Command, blocks, commands
from tools.bootstrap import ROOT
from tools.images.stages import split
from tools.pages import resource

BLOCKS = blocks()
COMMANDS = commands()
GROUP: Any = typer.main.get_command(app)
VERSION = "inference.dormouse.dev/v1alpha1"
SHELL = ("bash", "sh", "console")


def parse_dormouse(call: Command) -> None:
    """Parse a call of our command line; whether what it names is there shows when it is run."""
    if call.words == ["--version"]:
        return
    name, *rest = call.words
    command = GROUP.commands[name]
    if hasattr(command, "commands"):
        name, *rest = rest
        command = command.commands[name]
    if call.is_whole:
        command.make_context(name, [word for word in rest if word != "--help"], parent=typer.Context(GROUP))
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    takes_more = command.context_settings.get("ignore_unknown_options", False)
    assert takes_more or {word for word in rest if word.startswith("-")} <= known | {"--help"}


def parse_python(call: Command) -> None:
    """Look for the module or file."""
    words = call.words
    if words[:2] == ["-m", "pip"]:
        return
    if words[0] == "-m":
        assert importlib.util.find_spec(words[1]), words[1]
    else:
        assert words[0] == "-c" or (ROOT / words[0]).exists(), words[0]


def parse_make(call: Command) -> None:
    """Look for the targets. `make -n` would run the lines that call make again."""
    known = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert {word for word in call.words if "=" not in word} <= known


def parse_pip(call: Command) -> None:
    """Look for what is installed from the tree, which is named from its root or from the document."""
    for word in call.words:
        if word.startswith("."):
            name = word.partition("[")[0]
            folders = (ROOT / name, (ROOT / call.document).parent / name)
            assert any((folder / "pyproject.toml").is_file() for folder in folders), word


def parse_docker(call: Command) -> None:
    """Look for the stage that is built."""
    _, stages = split((ROOT / "Dockerfile").read_text("utf-8"))
    assert call.words[:2] == ["build", "--target"]
    assert call.words[2] in stages


def with_parser(parser: argparse.ArgumentParser) -> Callable[[Command], None]:
    """Return what parses a program's arguments."""

    def parse(call: Command) -> None:
        parser.exit_on_error = False
        parser.parse_args(call.words)

    return parse


def nothing(call: Command) -> None:
    """Leave it to the test that knows the program, or to the shell's own check."""


PROGRAMS: Mapping[str, Callable[[Command], None]] = {
    "dormouse": parse_dormouse,
    "docker": parse_docker,
    "dormouse-worker": with_parser(worker_flags()),
    "dormouse-gateway": with_parser(gateway_flags()),
    "make": parse_make,
    "pip": parse_pip,
    "python": parse_python,
    "python3": parse_python,
    **dict.fromkeys(
        ("cat", "curl", "export", "git", "helm", "kubectl", "mkdir", "openssl", "sha256sum", "source"), nothing
    ),
}


def test_there_are_commands():
    assert {command.program for command in COMMANDS} >= {"dormouse", "make", "helm", "kubectl", "python3"}


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_command_is_one_that_its_program_takes(command: Command):
    assert command.program in PROGRAMS, "tell tests/tools/test_commands.py how it is checked"
    PROGRAMS[command.program](command)


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_file_that_a_command_names_is_there(command: Command):
    named = [word for word in command.words if word.startswith(("examples/", "charts/", "deploy/", "tests/"))]
    assert [word for word in named if not (ROOT / word).exists()] == []


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language in SHELL], ids=str)
def test_the_shell_can_read_it(block: Block):
    text = "\n".join(command.text for command in block.commands()) if block.language == "console" else block.text
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "python"], ids=str)
def test_python_can_be_compiled_and_imports_what_there_is(block: Block):
    tree = ast.parse(block.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dormouse"):
            module = importlib.import_module(str(node.module))
            assert [name.name for name in node.names if not hasattr(module, name.name)] == []


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "yaml"], ids=str)
def test_yaml_is_read_and_a_deployment_in_it_has_only_fields_that_there_are(block: Block):
    for document in yaml.safe_load_all(block.text):
        if document.get("apiVersion") == VERSION or list(document) == ["spec"]:
            check_deployment(document)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").glob("*/*.yaml")), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_an_example_s_deployment_has_only_fields_that_there_are(path):
    for document in yaml.safe_load_all(path.read_text("utf-8")):
        if document.get("apiVersion") == VERSION:
            check_deployment(document)


def check_deployment(document: dict[str, Any]) -> None:
    """Hold an object of ours, or a part of a spec, to the schema; a whole one is read as the operator does."""
    kind = document.get("kind", "InferenceDeployment")
    known = resource.schema(f"{kind.lower()}s")["properties"]["spec"]
    assert unknown(document["spec"], known, "spec") == []
    metadata = {"namespace": "team", "name": "a", "uid": "u", **document.get("metadata", {})}
    if kind == "GpuPool":
        parse_pool({**document, "metadata": metadata})
    elif kind == "InferenceAdapter":
        assert parse_offer({**document, "metadata": {**metadata, "resourceVersion": "1"}}).fault == ""
    elif "model" in document["spec"]:
        parse_deployment({**document, "metadata": metadata})


def unknown(value: Any, schema: Mapping[str, Any], path: str) -> list[str]:
    """Return the paths of fields that the schema does not know."""
    if isinstance(value, list):
        return [found for item in value for found in unknown(item, schema.get("items", {}), f"{path}[]")]
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    properties = schema["properties"]
    found = [f"{path}.{name}" for name in value if name not in properties]
    return found + [
        deeper
        for name in value
        if name in properties
        for deeper in unknown(value[name], properties[name], f"{path}.{name}")
    ]


def test_a_field_that_is_not_there_is_found():
    known = resource.schema("inferencedeployments")["properties"]["spec"]
    assert unknown({"model": {"url": "x"}}, known, "spec") == ["spec.model.url"]
