"""Workers that leave nothing behind, the model that they read, and modules of a user's own."""

from __future__ import annotations

import gc
import sys

import pytest

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.executor.testing import make_fake_worker, make_worker
from dormouse_worker.model.testing import write_tiny_model


@pytest.fixture(scope="module", autouse=True)
def lasting_libraries():
    """Freeze what was imported and kept before the module's tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def lasting_tests():
    """Freeze what earlier tests of the module left, too: reports and fixtures grow by the hundred."""
    gc.freeze()


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


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Return a model's directory that nobody changes."""
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def workers():
    """Return a function that makes workers, which are shut down after the test."""
    made = []

    def make(directory, device="cpu", **settings):
        worker = (make_worker if device == "cpu" else make_fake_worker)(directory, **settings)
        made.append(worker)
        return worker

    yield make
    for worker in made:
        worker.shutdown()
