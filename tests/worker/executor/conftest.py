"""Modules of a user's own, for tests of what is loaded by name."""

from __future__ import annotations

import sys

import pytest

from dormouse_worker.settings import EngineSettings


@pytest.fixture
def worker_settings():
    """Return settings of a model that is not there."""
    return EngineSettings(model="/nowhere")


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """Return a function that writes a module and makes it importable while the test runs."""
    directory = tmp_path / "own_modules"
    directory.mkdir()
    monkeypatch.syspath_prepend(directory)
    written = []

    def write(name, text):
        (directory / f"{name}.py").write_text(text)
        written.append(name)
        return name

    yield write
    for name in written:
        sys.modules.pop(name, None)
