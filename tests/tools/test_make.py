"""What a target of the Makefile runs is all that there is for it."""

from __future__ import annotations

import re
from pathlib import Path

from tools.bootstrap import ROOT

MARK = "pytest.mark." + "cluster"
SLOW_ONLY = {"install", "platforms"}  # `make e2e-install`, `make e2e-platforms`


def test_every_folder_with_tests_of_the_cluster_is_one_where_make_e2e_looks():
    (listed,) = re.findall(r"^CLUSTER := (.+)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    tests = ROOT / "tests"
    marked = {file.relative_to(tests).parts[0] for file in tests.rglob("*.py") if MARK in file.read_text("utf-8")}
    assert {Path(folder).name for folder in listed.split()} == marked - SLOW_ONLY
