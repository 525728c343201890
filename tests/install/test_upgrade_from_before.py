"""An upgrade from sources of before: their workers keep running, and sleep, wake and answer as those of now ask."""

from __future__ import annotations

import asyncio
import os
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
from tools.release import Release, install, worker_image

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

    def run(self, python: str | Path, *arguments: str) -> str:
        """Run Python where these sources are, so that it finds them and nothing of this tree."""
        there = ["env", f"--chdir={self.root}", "--unset=PYTHONPATH"]
        return run([*there, python, *arguments], timeout_s=1200)

    def make(self) -> None:
        """Make its environment and its images, and hand them to the cluster."""
        self.run("python3", "tools/bootstrap.py")
        self.run(self.python, "-m", "tools.images")

    def install(self, cluster: Cluster, release: Release) -> None:
        """Install the chart of then; takes the place of `tools.release.install`."""
        del cluster
        self.run(self.python, "-c", INSTALL, release.name, release.namespace, *release.watch_namespaces)

    @property
    def python(self) -> Path:
        """Return the interpreter of its environment."""
        return self.root / ".venv" / "bin" / "python"

    @property
    def worker_image(self) -> str:
        """Return the name of its workers' image."""
        return self.run(self.python, "-c", "from tools.release import worker_image; print(worker_image())").strip()


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
        found.make()
        yield found
    finally:
        git("worktree", "remove", "--force", str(root))


async def test_workers_of_before_keep_running_and_obey_the_operator_of_now(
    cluster: Cluster, before: Before, tiny_model: Path
):
    old_image, new_image = before.worker_image, worker_image()
    assert old_image != new_image
    prober = Prober(await asyncio.to_thread(references.greedy_cases, tiny_model))
    with a_release(cluster, tiny_model, install=before.install) as mine:
        assert images_of(mine) == {tag_of(old_image)}
        async with open_world(cluster, mine.release) as world:
            await world.apply(MODEL, replicas=2, image=old_image, engine=ENGINE, resources=RESOURCES)
            await world.until(MODEL, lambda seen: seen.serves(2))
            then = pods_of(mine)
            async with asked_all_the_time(prober, await world.gateway_address(), LOAD, MODEL):
                await asyncio.to_thread(install, cluster, mine.release)
            assert images_of(mine) == {tag_of(new_image)}
            now = pods_of(mine)
            await world.patch(MODEL, {"lifecycle": {"desiredState": "Asleep", "sleepLevel": 1}})
            await world.until(MODEL, lambda seen: seen.status.get("phase") == "Asleep")
            await world.patch(MODEL, {"lifecycle": {"desiredState": "Active"}})
            await world.until(MODEL, lambda seen: seen.serves(2))
            async with asked_all_the_time(prober, await world.gateway_address(), LOAD, MODEL):
                await asyncio.sleep(1)
        assert pods_of(mine)["worker"] == now["worker"] == then["worker"] == dict.fromkeys(then["worker"], 0)
    for component in ("operator", "gateway"):
        assert not then[component].keys() & now[component].keys(), "their images are of now"
    assert len(prober.records) > LOAD.rate
    assert not failures(prober)


def pods_of(mine: Installed) -> dict[str, dict[str, int]]:
    return {component: mine.pods(component) for component in ("operator", "gateway", "worker")}


def images_of(mine: Installed) -> set[str]:
    """Return the tags of what the release's operator and gateway are to run."""
    deployments = mine.cluster.list("deployments", mine.release.namespace, "")
    containers = [each for one in deployments for each in one["spec"]["template"]["spec"]["containers"]]
    return {tag_of(each["image"]) for each in containers}


def tag_of(image: str) -> str:
    return image.rpartition(":")[2]
