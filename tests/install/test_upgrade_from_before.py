"""An upgrade from sources of before: their workers keep running, and sleep, wake and answer as those of now ask."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.install.conftest import MODEL, RESOURCES, Installed, a_release
from tests.install.test_upgrade import ENGINE, LOAD
from tests.install.traffic import asked_all_the_time, failures
from tests.prober import references
from tests.prober.probe import Prober
from tests.prober.world import open_world
from tools.bootstrap import ROOT
from tools.images.content import PACKAGES
from tools.kubectl import Cluster, run
from tools.release import Release, install

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1800)]

INSTALL = """
import sys
from tools.kubectl import Cluster
from tools.release import Release, install
name, namespace, watched = sys.argv[1:]
install(Cluster.current(), Release(name=name, namespace=namespace, watch_namespaces=(watched,)))
"""


@dataclass(frozen=True)
class Before:
    """A checkout of sources that somebody may have installed; its own tools build and install it."""

    root: Path

    def run(self, *arguments: str) -> str:
        """Run Python among these sources."""
        return run([sys.executable, *arguments], env={"PYTHONPATH": str(self.root)}, timeout_s=1200)

    def install(self, cluster: Cluster, release: Release) -> None:
        """Install the chart of then; takes the place of `tools.release.install`."""
        del cluster
        self.run("-c", INSTALL, release.name, release.namespace, *release.watch_namespaces)

    @property
    def worker_image(self) -> str:
        """Return the name of its workers' image."""
        return self.run("-c", "from tools.release import worker_image; print(worker_image())").strip()


def git(*arguments: str) -> str:
    return run(["git", "-C", ROOT, *arguments]).strip()


@pytest.fixture
def before(tmp_path: Path) -> Iterator[Before]:
    """DORMOUSE_UPGRADE_FROM, or else what there was before images changed the last time, with its images."""
    commit = os.environ.get("DORMOUSE_UPGRADE_FROM") or f"{git('rev-list', '-n', '1', 'HEAD', '--', *PACKAGES)}^"
    root = tmp_path / "before"
    git("worktree", "add", "--detach", str(root), commit)
    try:
        found = Before(root)
        found.run("-m", "tools.images")
        yield found
    finally:
        git("worktree", "remove", "--force", str(root))


async def test_workers_of_before_keep_running_and_obey_the_operator_of_now(
    cluster: Cluster, before: Before, tiny_model: Path
):
    prober = Prober(await asyncio.to_thread(references.greedy_cases, tiny_model))
    with a_release(cluster, tiny_model, install=before.install) as mine:
        async with open_world(cluster, mine.release) as world:
            old = {"image": before.worker_image, "engine": ENGINE, "resources": RESOURCES}
            await world.apply(MODEL, replicas=2, **old)
            await world.until(MODEL, lambda seen: seen.serves(2))
            then = pods_of(mine)
            async with asked_all_the_time(prober, await world.gateway_address(), LOAD, MODEL):
                await asyncio.to_thread(install, cluster, mine.release)
            now = pods_of(mine)
            await world.patch(MODEL, {"lifecycle": {"desiredState": "Asleep", "sleepLevel": 1}})
            await world.until(MODEL, lambda seen: seen.rung == "Level1" and seen.status.get("readyReplicas", 0) == 0)
            await world.patch(MODEL, {"lifecycle": {"desiredState": "Active"}})
            await world.until(MODEL, lambda seen: seen.serves(2))
            async with asked_all_the_time(prober, await world.gateway_address(), LOAD, MODEL):
                await asyncio.sleep(0)
        assert pods_of(mine)["worker"] == now["worker"] == then["worker"] == dict.fromkeys(then["worker"], 0)
    for component in ("operator", "gateway"):
        assert not then[component].keys() & now[component].keys(), "their images are of now"
    assert len(prober.records) > LOAD.rate
    assert not failures(prober)


def pods_of(mine: Installed) -> dict[str, dict[str, int]]:
    return {component: mine.pods(component) for component in ("operator", "gateway", "worker")}
