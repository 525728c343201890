"""One tiny model for all tests of workers that only read it, and workers that leave nothing behind."""

import pytest

from dormouse_worker.executor.testing import make_fake_worker, make_worker
from dormouse_worker.model.testing import write_tiny_model


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
