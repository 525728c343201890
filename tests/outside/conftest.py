"""What an outsider's tests share with ours: real workers, a real API server. They run in `make test-long` alone."""

from __future__ import annotations

import pytest

from tests.faults.conftest import binaries, kube, plane, town, toxiproxy, world
from tests.integration.conftest import start_worker
from tests.outside.visited import gateway, worker

__all__ = ["binaries", "gateway", "kube", "plane", "start_worker", "town", "toxiproxy", "worker", "world"]


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The run's seed, which the record keeps: the same one draws the same requests and resources again."""
    drawn: int = request.config.getoption("randomly_seed", 0) or 0
    return drawn
