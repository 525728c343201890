"""The one view of a long run."""

from __future__ import annotations

import io
import signal
import sys

import pytest
from rich.console import Console

from tools.progress import Progress, begun, follow, stream


def plain() -> tuple[Progress, io.StringIO]:
    """Return a view that is not a terminal, and what it prints to."""
    out = io.StringIO()
    return Progress(total=2, console=Console(file=out, width=200)), out


def test_steps_are_numbered_and_timed():
    progress, out = plain()
    with progress.step("First"):
        pass
    with progress.step("Second") as step:
        step.tell("half way")
    lines = out.getvalue().splitlines()
    assert [line.split("  ")[0].strip() for line in lines if line.startswith("✓")] == [
        "✓ [1/2] First",
        "✓ [2/2] Second",
    ]
    assert "        half way" in lines


def test_a_failed_step_is_named():
    progress, out = plain()
    with pytest.raises(RuntimeError), progress.step("Breaks"):
        raise RuntimeError
    assert "✗ [1/2] Breaks failed after" in out.getvalue()


def test_a_command_that_fails_ends_the_run_with_its_last_lines():
    progress, out = plain()
    program = "print('working'); raise SystemExit('no disk')"
    with pytest.raises(SystemExit, match=r"(?s)no disk.*ended with 1"), progress.step("Runs") as step:
        stream([sys.executable, "-c", program], step)
    assert "working" in out.getvalue()


def test_a_begun_command_works_beside_and_is_followed_later():
    progress, out = plain()
    with begun([sys.executable, "-c", "print('trained')"]) as process:
        with progress.step("First"):
            process.wait()
        with progress.step("Second") as step:
            follow(process, step)
    assert "trained" in out.getvalue()


def test_a_begun_command_that_failed_meanwhile_ends_the_run_at_its_own_step_with_its_words():
    progress, out = plain()
    with begun([sys.executable, "-c", "raise SystemExit('no disk')"]) as process:
        with progress.step("First"):
            process.wait()
        with pytest.raises(SystemExit, match=r"(?s)no disk.*ended with 1"), progress.step("Second") as step:
            follow(process, step)
    assert "✓ [1/2] First" in out.getvalue()
    assert "✗ [2/2] Second failed" in out.getvalue()


def test_a_begun_command_ends_with_its_block():
    with pytest.raises(RuntimeError), begun([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        raise RuntimeError
    assert process.returncode == -signal.SIGTERM
