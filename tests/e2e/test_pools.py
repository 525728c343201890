"""Two models take turns on one GPU, on a real scheduler and a real kubelet, with real workers on a stand-in device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localkube.gpus.objects import DRIVER
from tests.e2e import gpus
from tests.e2e.kit import Deployments, Manifest, Models, wait_until_none
from tools import reference
from tools.kubectl import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

POOL, FIRST, SECOND = "turns", "dusk", "dawn"
PROMPTS = {FIRST: [20, 21, 22, 23], SECOND: [30, 31, 32]}
NUM_TOKENS = 12


@pytest.fixture
def device(cluster: Cluster, namespace: str) -> Iterator[Path]:
    """One GPU, and a claim by which pods share its books. Nothing of both is left afterwards."""
    assert cluster.local, "the driver talks to the kubelet of localkube"
    driver = gpus.Driver(number=1)
    name = f"{namespace}-stand-ins"
    for manifest in gpus.volume(name, namespace):
        cluster.apply(manifest, namespace)
    yield gpus.FOLDER / "gpu-0"
    cluster.kubectl("delete", "pvc", name, "-n", namespace)
    cluster.kubectl("delete", "pv", name)
    driver.stop()
    assert DRIVER not in cluster.kubectl("get", "resourceslices,deviceclasses", "-o", "name")


@pytest.fixture
def members(device: Path, cluster: Cluster, deployments: Deployments) -> Iterator[Deployments]:
    """A pool of one slot and two members. All of it is gone before the driver ends."""
    assert device.is_dir()
    before = deployments.everything()
    cluster.apply(pool_manifest(slots=1), deployments.namespace)
    for name in (FIRST, SECOND):
        deployments.apply(
            name,
            engine={"device": "cuda", "kvCacheMemory": "32Mi"},
            gpu={"pool": {"name": POOL}},
            template=gpus.mounted(f"{deployments.namespace}-stand-ins"),
        )
    yield deployments
    for name in (FIRST, SECOND):
        deployments.delete(name)
    cluster.kubectl("delete", "gpool", POOL, "-n", deployments.namespace)
    wait_until_none(lambda: deployments.everything() - before)


def pool_manifest(slots: int) -> Manifest:
    """Return a pool of so many GPUs of the driver, each with room for two models."""
    return {
        "apiVersion": "inference.dormouse.dev/v1alpha1",
        "kind": "GpuPool",
        "metadata": {"name": POOL},
        "spec": {
            "slots": slots,
            "device": {"claim": {"deviceClassName": DRIVER}},
            "maxMembersPerSlot": 2,
            "sleeperReserve": "32Mi",
            "policy": {"minActiveSeconds": 1, "patienceSeconds": 0},
        },
    }


def slot_of(deployments: Deployments) -> Manifest:
    """Return what the pool's status says of its slot."""
    [slot] = deployments.cluster.get("gpool", POOL, deployments.namespace)["status"]["slots"]
    return dict(slot)


def holders(deployments: Deployments) -> list[str]:
    """Return who has the slot, [] while it changes hands."""
    slot = slot_of(deployments)
    return [holding["replica"] for holding in slot.get("holders", ())] if slot["phase"] == "Held" else []


def test_two_models_answer_in_turn_on_one_gpu_and_status_and_events_tell_who_has_it(
    members: Deployments, device: Path, model_of: Models, tiny_model: Path, eventually: Callable[..., Any]
) -> None:
    for name in (FIRST, SECOND):
        members.wait(name, 'jsonpath={.status.conditions[?(@.type=="Ready")].reason}=Asleep')
    assert holders(members) == []
    for name in (FIRST, SECOND, FIRST, SECOND):
        expected = reference.greedy_tokens(tiny_model, PROMPTS[name], NUM_TOKENS)
        assert model_of(name).greedy(PROMPTS[name], NUM_TOKENS) == expected, "one call: it was held, and answered"
        eventually(lambda name=name: holders(members) == [f"{name}[0]"])
    slot = slot_of(members)
    assert slot["devices"] == [f"{DRIVER}/{slot['node']}/gpu-0"]
    eventually(lambda: members.condition(FIRST, "Ready")["reason"] == "Asleep")
    assert {pod["spec"]["resourceClaims"][0]["resourceClaimName"] for pod in members.pods(FIRST)} == {f"{POOL}-0"}
    told = members.events(POOL)
    assert f"slot {POOL}-0: {FIRST}[0] leaves for {SECOND}[0]" in str(told).replace(f"{members.namespace}/", "")
    assert f"slot {POOL}-0: {members.namespace}/{SECOND}[0] serves" in told
    assert sum(members.restarts(FIRST) + members.restarts(SECOND)) == 0
    assert not (device / "violations").exists(), (device / "violations").read_text()
