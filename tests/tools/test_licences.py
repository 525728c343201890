"""No package comes in under a licence that nobody allowed, and each direct dependency has a reason."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import locks
from tools.bootstrap import ROOT
from tools.pages.licences import ALLOWED, DEMO, NVIDIA, STATED, packages

PACKAGES = packages()
NOTE = (ROOT / "docs/decisions/0015-dependencies.md").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
GROUPS = {"Everywhere": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
SECTIONS = {
    "operator": "Operator",
    "gateway": "Gateway",
    "worker": "Worker",
    "quantization": "Worker",
    "tracing": "Tracing (extra)",
    "kv-events": "KV events (extra)",
    "cli": "Command line",
    "dev": "To build and test",
}


def named(section: str) -> set[str]:
    """Return the packages that a section of the note has a whole row for."""
    (text,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", NOTE, re.DOTALL | re.MULTILINE)
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    return {canonicalize_name(row[0]) for row in rows[1:] if len(row) == 3 and all(row)}


@pytest.mark.parametrize("one", PACKAGES, ids=lambda one: one.name)
def test_a_package_has_an_allowed_licence(one):
    assert one.words, "its metadata name none: state it in tools/pages/licences.py"
    assert one.words <= ALLOWED | {NVIDIA}


def test_the_demos_model_comes_pinned_by_hash_under_an_allowed_licence():
    pins = locks.parse((ROOT / "requirements" / "demo-model.txt").read_text("utf-8"))
    assert {name for name, pin in pins.items() if pin.hashes} == set(DEMO)
    assert set(DEMO.values()) <= ALLOWED


def test_only_the_worker_holds_what_is_proprietary():
    assert {part for one in PACKAGES if NVIDIA in one.words for part in one.parts} == {"worker"}
    assert [one.name for one in PACKAGES if NVIDIA in one.words and not one.name.startswith(("nvidia-", "cuda-"))] == []


def test_no_licence_is_stated_for_a_package_that_is_gone():
    assert STATED.keys() <= {one.name for one in PACKAGES}


@pytest.mark.parametrize("group", GROUPS)
def test_each_direct_dependency_has_its_reason(group: str):
    wanted = {canonicalize_name(Requirement(text).name) for text in GROUPS[group]}
    assert wanted - named(SECTIONS.get(group, group)) == set()


def test_no_reason_is_left_for_a_dependency_that_is_gone():
    wanted = {canonicalize_name(Requirement(text).name) for group in GROUPS.values() for text in group}
    assert {name for section in {*SECTIONS.values(), "Everywhere"} for name in named(section)} == wanted


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").glob("**/pyproject.toml")), ids=lambda path: path.parent.name
)
def test_examples_depend_on_us_only(path):
    assert tomllib.loads(path.read_text("utf-8"))["project"].get("dependencies", []) in ([], ["dormouse"])
