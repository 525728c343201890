"""Writes what a run of tests was and how it ended, when DORMOUSE_RECORD names it: seed, commit, seconds."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tools.bootstrap import ROOT

FOLDER = ROOT / "tests" / "records"


class Recorder:
    """Collects results; a pytest plugin."""

    def __init__(self, name: str, folder: Path = FOLDER) -> None:
        """Take the record's name, and where it goes."""
        self._name = name
        self._folder = folder
        self._begin_s = time.monotonic()
        self._tests: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note outcome, seconds and properties of a test; a failure in its set-up or its end counts as its own."""
        test = self._tests.setdefault(report.nodeid, {"outcome": "passed", "seconds": 0.0})
        test["seconds"] = round(test["seconds"] + report.duration, 2)
        test.update(report.user_properties)
        if report.outcome != "passed":
            test["outcome"] = report.outcome

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the record; the commit has a + when the tree differs from it."""
        record = {
            "name": self._name,
            "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "commit": _git("rev-parse", "--short=12", "HEAD") + ("+" if _git("status", "--porcelain") else ""),
            "seed": getattr(session.config.option, "randomly_seed", None),
            "machine": f"{os.cpu_count()} x {platform.machine()}, Python {platform.python_version()}",
            "seconds": round(time.monotonic() - self._begin_s, 1),
            "tests": dict(sorted(self._tests.items())),
        }
        self._folder.mkdir(exist_ok=True)
        (self._folder / f"{self._name}.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()
