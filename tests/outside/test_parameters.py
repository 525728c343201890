"""No parameter that OpenAI's newest libraries know is ignored in silence: each stands in the table of its endpoint."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Set
from pathlib import Path

import pytest

from dormouse_gateway.openai.doors import CHAT_DOOR, COMPLETION_DOOR, DOORS, EMBEDDINGS_DOOR, RESPONSES_DOOR
from tests.outside import client_env
from tools.pages.http import rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

OF_NODE = {
    CHAT_DOOR.path: ("chat/completions/completions", "ChatCompletionCreateParamsBase"),
    COMPLETION_DOOR.path: ("completions", "CompletionCreateParamsBase"),
    EMBEDDINGS_DOOR.path: ("embeddings", "EmbeddingCreateParams"),
    RESPONSES_DOOR.path: ("responses/responses", "ResponseCreateParamsBase"),
}
OF_PYTHON = {
    CHAT_DOOR.path: ("chat.completion_create_params", "CompletionCreateParamsStreaming"),
    COMPLETION_DOOR.path: ("completion_create_params", "CompletionCreateParamsStreaming"),
    EMBEDDINGS_DOOR.path: ("embedding_create_params", "EmbeddingCreateParams"),
    RESPONSES_DOOR.path: ("responses.response_create_params", "ResponseCreateParamsStreaming"),
}
_LIST = """
import importlib, json, sys
typed = getattr(importlib.import_module("openai.types." + sys.argv[1]), sys.argv[2])
print(json.dumps(sorted(typed.__required_keys__ | typed.__optional_keys__)))
"""


@pytest.fixture(scope="module")
def environment() -> Path:
    return client_env.make()


def declared(text: str, interface: str) -> Set[str]:
    """Return the names that an interface of TypeScript declares, not those of objects within."""
    body = re.search(rf"^export interface {interface} \{{\n(.*?)^\}}", text, re.MULTILINE | re.DOTALL)
    assert body is not None, f"the library has no {interface}"
    return set(re.findall(r"^    '?(\w+)'?\??:", body[1], re.MULTILINE))


def told(path: str) -> Set[str]:
    """Return the parameters in an endpoint's table."""
    (door,) = (door for door in DOORS if door.path == path)
    return {name for name, _, _ in rows(door)}


@pytest.mark.parametrize("path", OF_NODE)
def test_every_parameter_of_the_library_for_node_stands_in_the_table(environment, path):
    file, interface = OF_NODE[path]
    text = (environment / "node_modules" / "openai" / "resources" / f"{file}.d.ts").read_text("utf-8")
    known = declared(text, interface)
    assert {"model"} < known
    assert known - told(path) == set()


@pytest.mark.parametrize("path", OF_PYTHON)
def test_every_parameter_of_the_newest_library_for_python_stands_in_the_table(environment, path):
    command = [environment / "bin" / "python", "-c", _LIST, *OF_PYTHON[path]]
    known = set(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    assert {"model"} < known
    assert known - told(path) == set()
