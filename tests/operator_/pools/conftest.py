"""A pool with one slot, and the members a and b that nobody calls."""

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
    return rig
