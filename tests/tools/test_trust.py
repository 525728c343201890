"""The page of promises: each names a test, and each of those tests exists."""

from __future__ import annotations

import re

import pytest

from tools.bootstrap import ROOT

PAGE = ROOT / "docs/design/trust.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ROWS = [
    line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ") and not line.startswith("| promise ")
]


def named_tests() -> list[tuple[str, str]]:
    """Return every test that the page names."""
    return TEST.findall(PAGE.read_text("utf-8"))


@pytest.mark.parametrize("row", ROWS)
def test_every_promise_names_a_test(row):
    assert TEST.search(row), "a promise without a test is a wish"


@pytest.mark.parametrize(("file", "name"), named_tests())
def test_every_named_test_exists(file, name):
    assert re.search(rf"^ *(async )?def {name}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE)
