"""Tests that share what there is once run in one process, whatever pytest and pytest-xdist make of marks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.together import ONE_DRIVER
from tools.bootstrap import ROOT

CONFTEST = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.conftest import pytest_xdist_make_scheduler
"""
FILE = """
import os, pathlib, pytest
@pytest.mark.parametrize("index", range(4))
def test_where(index):
    with (pathlib.Path(os.environ["WHERE"]) / pathlib.Path(__file__).stem).open("a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + " ")
"""
OTHERS = ("tests/e2e/test_a.py", "tests/e2e/test_b.py", "tests/e2e/test_c.py")


def test_files_are_not_parted_and_those_with_the_driver_are_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (where := tmp_path / "where").mkdir()
    for name in (*ONE_DRIVER, *OTHERS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(FILE)
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "-q", "--rootdir", ".", "tests"]
    subprocess.run(command, cwd=tmp_path, env={"WHERE": str(where)}, check=True, capture_output=True)
    processes = {Path(name).stem: set((where / Path(name).stem).read_text().split()) for name in (*ONE_DRIVER, *OTHERS)}
    assert all(len(of_file) == 1 for of_file in processes.values())
    assert len(set.union(*(processes[Path(name).stem] for name in ONE_DRIVER))) == 1
    assert len(set.union(*processes.values())) == 2
