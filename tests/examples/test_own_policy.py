"""The example of a router policy of one's own: built as a package, found by its entry point, routing real calls."""

import subprocess
import sys

import pytest

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.routing.policy import Demand, PolicyOptions, Worker
from dormouse_gateway.routing.registry import make_policy
from dormouse_gateway.testing.slices import ControlledKube
from dormouse_gateway.testing.workers import running_workers
from tests.gateway.conftest import running_house
from tests.gateway.kit import tokens_of
from tools.bootstrap import ROOT

PACKAGE = ROOT / "examples" / "extend" / "fill_first"


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """Build the package's wheel and let it be found as an installed one: a wheel is what pip would unpack."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=PACKAGE, check=True, capture_output=True)
    [built] = tmp_path.glob("*.whl")
    monkeypatch.syspath_prepend(built)
    yield built
    sys.modules.pop("fill_first", None)


@pytest.mark.usefixtures("wheel")
def test_the_policy_of_the_package_fills_worker_after_worker():
    policy = make_policy("fill-first", PolicyOptions(affinity_bound=1.25))
    for busy, other, chosen in [(0, 0, "a"), (100, 0, "a"), (8000, 0, "b"), (8192, 8191, "b")]:
        choice = policy.choose(Demand(200, 100), [Worker("b", tokens=other), Worker("a", tokens=busy)])
        assert choice.worker.name == chosen, (busy, other)
    import fill_first

    assert ".whl" in fill_first.__file__


@pytest.mark.usefixtures("wheel")
async def test_a_gateway_with_it_leaves_the_second_worker_idle():
    async with running_workers(2) as workers, running_house(ControlledKube(), router_policy="fill-first") as house:
        await house.add("tiny", workers)
        workers[0].is_gated = workers[1].is_gated = True
        calls = [house.stub.Generate(pb.GenerateRequest(model="tiny", text="a"), timeout=90) for _ in range(5)]
        await house.until(lambda: house.outstanding() == 5)
        await house.until(lambda: len(workers[0].seen) == 5)
        assert not workers[1].seen
        workers[0].gate.set()
        assert [await tokens_of(call) for call in calls] == [[1, 2, 3]] * 5
