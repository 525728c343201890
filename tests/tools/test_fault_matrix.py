"""docs/design/faults.md names every fault, and only tests that are there."""

from __future__ import annotations

import ast
import re

from tools.bootstrap import ROOT

TEXT = (ROOT / "docs/design/faults.md").read_text("utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)
FAULTS = re.findall(r"^\| (F\d+) \|", TEXT, re.MULTILINE)


def names_in(path: str) -> set[str]:
    """Return the names of a file's test functions."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_test_that_the_matrix_names_is_there() -> None:
    assert len(NAMED) > 50
    missing = [f"{path}::{name}" for path, name in NAMED if not (ROOT / path).is_file() or name not in names_in(path)]
    assert missing == []


def test_the_matrix_has_every_fault_once_or_in_parts_that_follow_each_other() -> None:
    assert list(dict.fromkeys(FAULTS)) == [f"F{number}" for number in range(1, 40)]


def test_a_fault_names_a_test_or_says_what_is_not_tested() -> None:
    rows = [line.strip("|").split("|") for line in TEXT.splitlines() if re.match(r"\| F\d", line)]
    assert [row[0].strip() for row in rows if "`tests/" not in row[2] and not row[3].strip()] == []
