"""What an outsider's tests share with ours: real workers, a real API server. They run in `make test-long` alone."""

from __future__ import annotations

import pytest

from tests.faults.conftest import binaries, kube, plane, toxiproxy, world
from tests.integration.conftest import start_worker

__all__ = ["binaries", "kube", "plane", "start_worker", "toxiproxy", "world"]


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The run's seed, which the record keeps: the same one draws the same requests and resources again."""
    drawn: int = request.config.getoption("randomly_seed", 0) or 0
    return drawn
