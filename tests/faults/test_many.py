"""Many resources at once, some of them poison; and resources that the schema lets pass and nobody can serve.

F13 and F14 of the fault matrix.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.faults.judging import judge_all
from tests.faults.schema_values import values
from tests.faults.world import World
from tools.bootstrap import ROOT


def spec_schema() -> Mapping[str, Any]:
    """Return the schema of the spec, from the CRD itself."""
    crd = yaml.safe_load((ROOT / "crds" / "inferencedeployments.yaml").read_text("utf-8"))
    schema: Mapping[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


ODD_URIS = st.sampled_from(
    ["pvc://models/tiny", "pvc://models", "pvc://a//b", "file:///x", "file:///", "pvc://-/x", "hf://a/b"]
)
SPECS = values(
    spec_schema(),
    {
        ".replicas": st.integers(0, 2),  # a thousand pods say nothing that two do not
        ".engine.device": st.sampled_from(["cpu", "cpu", "cpu", "cuda"]),
        ".model.uri": ODD_URIS | st.from_regex(r"(pvc://[a-z0-9.]{1,8}/|file:///)[ -~]{0,30}", fullmatch=True),
        ".image": st.sampled_from(["worker:1", " ", "UPPER CASE", "a" * 512]) | st.text(min_size=1, max_size=20),
    },
)


def generated(count: int, seed: int) -> list[Mapping[str, Any]]:
    """Return so many specs; the same for the same seed."""
    found: list[Mapping[str, Any]] = []

    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(SPECS)
    def collect(spec: Mapping[str, Any]) -> None:
        found.append(spec)

    hypothesis.seed(seed)(collect)()
    return found


@pytest.mark.slow
async def test_generated_resources_are_judged_one_by_one_and_harm_nobody(world: World, request: Any) -> None:
    """F13: what passes the schema gets a verdict with a reason; the process lives and logs no traceback."""
    specs = await judge_all(world, generated, 50, request.config.getoption("randomly_seed", 0) or 0)
    assert specs.refused > 0, "the schema refuses some"


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_thousands_of_generated_resources_are_judged(world: World, request: Any) -> None:
    """F13, long: at least 2,000 that the API server took."""
    specs = await judge_all(world, generated, 2000, request.config.getoption("randomly_seed", 0) or 0)
    assert specs.judged >= 2000


async def crowd(world: World, count: int) -> None:
    """Create many, one of which can never be served, and have all others served."""
    async with world.operator() as operator:
        names = [f"c{number}" for number in range(count)]
        await world.create("poison", {"model": {"uri": "pvc://models/x"}, "engine": {"device": "cpu"}, "image": " "})
        await asyncio.gather(*(world.apply(name) for name in names))
        await world.until(lambda: world.is_ready(*names), timeout_s=240)
        assert not world.is_ready("poison")
        tries = len([line for line in world.writes() if " pods poison" in line])
        assert tries <= 40, "what fails is tried again at growing intervals, not all the time"
        assert {world.kubelet.starts[pod["metadata"]["name"]] for name in names for pod in world.pods(name)} == {1}
        assert operator.exit_codes == []


async def test_a_crowd_is_served_beside_a_poisonous_one(world: World) -> None:
    """F14, small: one that fails for ever takes nothing from the others."""
    await crowd(world, 30)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_two_hundred_at_once_are_served_beside_a_poisonous_one(world: World) -> None:
    """F14."""
    await crowd(world, 200)
