"""A pool with one slot, whose device was measured before, and the members a and b that nobody calls."""

from __future__ import annotations

import pytest

from tests.operator_.pools.rig import PoolRig


@pytest.fixture
async def rig():
    rig = PoolRig()
    rig.pool()
    rig.member("a")
    rig.member("b")
    await rig.until(lambda: len(rig.workers_of("a")) == len(rig.workers_of("b")) == 1)
    for worker in (*rig.workers_of("a"), *rig.workers_of("b")):
        worker.has_report = True
    return rig
