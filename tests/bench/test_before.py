"""Our engine beside that of another checkout: what is started, and which rows come of it."""

from __future__ import annotations

import io
import os
import sys
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from bench import before
from bench.options import Options
from bench.replies import Reply

CHECKOUT = Path("/other")
THEIR_PYTHON = str(CHECKOUT / ".venv/bin/python")


class Side:
    """Stands for a `Helper`: answers each request with its tokens, one in so many seconds of its python's."""

    def __init__(self, started, token_s, module, *arguments, python=sys.executable, env=None, rests=False):
        self.command, self.env, self.rests = (str(python), module, *arguments), env, rests
        self._token_s = token_s[str(python)]
        started.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, job):
        return [Reply([1] * one.max_tokens, 0.0, self._token_s, self._token_s * one.max_tokens) for one in job.requests]


def measure(monkeypatch, *, their_token_s=1.0):
    """Return who was started, and the rows; a token of ours takes a second."""
    started = []
    monkeypatch.setattr(before, "Helper", partial(Side, started, {sys.executable: 1.0, THEIR_PYTHON: their_token_s}))
    monkeypatch.setattr(before, "ensure_model", lambda name, dtype: Path(f"/{name}-{dtype}"))
    options = Options(models=("tiny",), reps=1, count=2, threads=2)
    return started, before.measure(CHECKOUT, options, Console(file=io.StringIO()))


def test_the_other_checkout_computes_with_its_own_code_and_environment(monkeypatch):
    (ours, other), _ = measure(monkeypatch)
    assert ours.command == (sys.executable, "bench.ours", "/tiny-bf16", "2")
    assert other.command == (THEIR_PYTHON, "bench.ours", "/tiny-bf16", "2")
    assert (ours.rests, other.rests) == (True, True), "who is not asked disturbs nobody"
    assert ours.env is None
    assert other.env["PYTHONSAFEPATH"] == "1"
    path = other.env["PYTHONPATH"].split(os.pathsep)
    assert str(CHECKOUT / "worker_image") in path
    assert all(Path(part).is_relative_to(CHECKOUT) for part in path)


@pytest.mark.parametrize(("their_token_s", "holds"), [(1.0, True), (2.0, True), (0.985, True), (0.975, False)])
def test_what_is_more_than_two_percent_slower_misses_its_goal(monkeypatch, their_token_s, holds):
    _, rows = measure(monkeypatch, their_token_s=their_token_s)
    assert [(row.what, row.unit, row.holds) for row in rows] == [
        ("W1, tiny", "tokens/s", holds),
        ("time to first token W2, tiny", "ms", holds),
        ("time per output token W2, tiny", "ms", holds),
    ]
    assert [row.ratio for row in rows] == pytest.approx([their_token_s, 1 / their_token_s, 1 / their_token_s], rel=0.01)
