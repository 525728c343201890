"""What every test needs: the cluster, the small trained model, how long hypothesis looks."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from dormouse_worker.common.host import lasting_objects
from tests.recording import Recorder
from tests.together import Together
from tools.kubectl import Cluster
from tools.train_model import Recipe, model_dir

settings.register_profile(  # how long an example takes, to find or to try, is the machine's affair
    "searching", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(  # the same examples each time: who changes something else is not told of luck
    "steady", settings.get_profile("searching"), derandomize=True, database=None
)
settings.load_profile("steady")
settings.register_profile(  # for `make mutate`: a mutant needs one failure, not the smallest one
    "mutation", max_examples=25, phases=[Phase.generate], derandomize=True, database=None
)


def pytest_configure(config: pytest.Config) -> None:
    """Keep a record of the run if one was asked for."""
    if name := os.environ.get("DORMOUSE_RECORD"):
        config.pluginmanager.register(Recorder(name))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Let no garbage collection look at libraries and tests: they stay, and to look at all of them takes a second."""
    with lasting_objects():
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Measure no coverage of property tests: it doubles their time, and examples reach all that they reach."""
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker("no_cover")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Let torch, where a test imported it, compute by one thread: several wait for each other over tiny tensors."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together | None:
    """Keep files together, and those together that share what there is once."""
    return Together(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The cluster that `make cluster` brought up. Without one its tests fail: a skip would look like a success."""
    return Cluster.current()


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """The directory of the small trained model."""
    path = model_dir(Recipe())
    assert path.is_dir(), "run make model"
    return path
