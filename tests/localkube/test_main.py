"""The command line as other programs use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from localkube.__main__ import READER_LEFT

WITHOUT_EFFECT = ("status", "kubeconfig", "bin")


def run_unread(cache: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command whose reader has left already."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [sys.executable, "-m", "localkube", *arguments],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "DORMOUSE_CACHE": str(cache), **variables},
        )
    finally:
        os.close(writer)


@pytest.mark.parametrize(
    "buffering", [{"PYTHONUNBUFFERED": ""}, {"PYTHONUNBUFFERED": "1"}], ids=["at its end", "at once"]
)
@pytest.mark.parametrize("command", WITHOUT_EFFECT)
def test_a_reader_that_leaves_ends_the_command_without_a_word(command: str, buffering: dict[str, str], tmp_path: Path):
    done = run_unread(tmp_path, command, **buffering)
    assert (done.returncode, done.stderr) == (READER_LEFT, "")


def test_help_that_nobody_reads_is_no_failure(tmp_path: Path):
    assert run_unread(tmp_path, "--help").stderr == ""
