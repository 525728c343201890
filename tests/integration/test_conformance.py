"""Our own worker keeps the worker protocol, all of it."""

from __future__ import annotations

import pytest

from dormouse_api.capabilities import Capability
from dormouse_conformance.run import Outcome
from tests.conformance.kit import findings, target


@pytest.mark.timeout(300)
def test_our_worker_claims_everything_and_keeps_every_rule(start_worker, tiny_model):
    worker = start_worker(tiny_model)
    found = findings(target(worker.port, worker.control_port, 120.0))
    assert set(worker.status().capabilities) == set(Capability)
    assert {one.rule: f"{one.outcome}: {one.seen}" for one in found if one.outcome is not Outcome.PASSED} == {}
