"""An upgrade and a rollback under 20 requests a second: none may be lost, and no worker restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.install.conftest import MODEL, RESOURCES, Installed
from tests.install.traffic import asked_all_the_time, failures
from tests.prober import references
from tests.prober.loads import Load
from tests.prober.probe import Prober
from tests.prober.world import open_world

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

LOAD = Load(rate=20, is_fixed=True)
ENGINE = {"maxNumSeqs": 64, "maxNumBatchedTokens": 512, "kvCacheMemory": "128Mi"}
NEW_PODS = ("operator.podAnnotations.round=second", "gateway.podAnnotations.round=second")


async def test_an_upgrade_and_a_rollback_lose_no_request_and_restart_no_worker(
    installed: Callable[[], Installed], tiny_model: Path
):
    mine = await asyncio.to_thread(installed)
    prober = Prober(await asyncio.to_thread(references.greedy_cases, tiny_model))
    async with open_world(mine.cluster, mine.release) as world:
        await world.apply(MODEL, replicas=2, engine=ENGINE, resources=RESOURCES)
        await world.until(MODEL, lambda seen: seen.serves(2))
        before = {component: mine.pods(component) for component in ("operator", "gateway", "worker")}
        async with asked_all_the_time(prober, await world.gateway_address(), LOAD, MODEL):
            await asyncio.to_thread(mine.upgrade, *NEW_PODS)
            upgraded = {component: mine.pods(component) for component in before}
            await asyncio.to_thread(mine.rollback)
        after = mine.pods("worker")
        await world.until(MODEL, lambda seen: seen.serves(2))
    for component in ("operator", "gateway"):
        assert not before[component].keys() & upgraded[component].keys(), "the upgrade made all pods anew"
    assert upgraded["worker"] == after == before["worker"] == dict.fromkeys(before["worker"], 0)
    assert len(prober.records) > LOAD.rate
    assert not failures(prober)
