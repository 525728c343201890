"""Two models take turns on one GPU, on a real scheduler and a real kubelet, with real workers on a stand-in device."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from torch.nn.functional import normalize

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from dormouse_worker.model.device.ledger_file import read_usage
from dormouse_worker.model.testing_pooling import reference_hidden, write_tiny_encoder
from localkube.gpus.device_plugin import RESOURCE, VARIABLE
from localkube.gpus.objects import DRIVER
from tests.e2e import gpus
from tests.e2e.costs import counted, minutes_by_model
from tests.e2e.kit import Deployments, Manifest, Models, wait_until_none
from tests.faults.prometheus import Prometheus
from tools import reference
from tools.kubectl import Cluster, fill_claim
from tools.release import Release, worker_image

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

POOL, FIRST, SECOND = "turns", "dusk", "dawn"
VECTORS = "vectors"
RESERVATION = f"{POOL}-0-reservation"
PROMPTS = {FIRST: [20, 21, 22, 23], SECOND: [30, 31, 32]}
NUM_TOKENS = 12
MANY = tuple(f"hour{number}" for number in range(6))
NUM_CALLS, NUM_CLIENTS = 25, 3  # of each client


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
def prometheus(cluster: Cluster, release: Release, tmp_path: Path) -> Iterator[Prometheus]:
    """A Prometheus that scrapes the operators."""
    with counted(cluster, release, tmp_path) as mine:
        yield mine


@pytest.fixture
def members(device: Path, cluster: Cluster, deployments: Deployments) -> Iterator[Deployments]:
    """A pool of one slot and two members, with room for a third. All of it is gone before the driver ends."""
    assert device.is_dir()
    before = deployments.everything()
    cluster.apply(pool_manifest(slots=1, members=3), deployments.namespace)
    apply_members(deployments, FIRST, SECOND)
    yield deployments
    for name in list(deployments.made):
        deployments.delete(name)
    cluster.kubectl("delete", "gpool", POOL, "-n", deployments.namespace)
    wait_until_none(lambda: deployments.everything() - before)


def apply_members(deployments: Deployments, *names: str, uri: str = "pvc://models/tiny", **engine: Any) -> None:
    """Apply models as members of the pool, with the folder of stand-in GPUs."""
    for name in names:
        deployments.apply(
            name,
            model={"uri": uri},
            engine={"device": "cuda", "kvCacheMemory": "32Mi", **engine},
            gpu={"pool": {"name": POOL}},
            template=gpus.mounted(f"{deployments.namespace}-stand-ins"),
        )


def pool_manifest(slots: int, members: int = 2) -> Manifest:
    """Return a pool of so many GPUs of the driver, each with room for two models."""
    return {
        "apiVersion": "inference.dormouse.dev/v1alpha1",
        "kind": "GpuPool",
        "metadata": {"name": POOL},
        "spec": {
            "slots": slots,
            "device": {"claim": {"deviceClassName": DRIVER}},
            "maxMembersPerSlot": members,
            "sleeperReserve": "32Mi",
            "policy": {"minActiveSeconds": 1, "patienceSeconds": 0},
        },
    }


@pytest.fixture
def town(cluster: Cluster, namespace: str, deployments: Deployments) -> Iterator[tuple[gpus.Driver, Deployments]]:
    """Two GPUs, a pool of both, and six members. All of it is gone before the driver ends."""
    assert cluster.local, "the driver talks to the kubelet of localkube"
    driver, name = gpus.Driver(number=2), f"{namespace}-stand-ins"
    for manifest in gpus.volume(name, namespace):
        cluster.apply(manifest, namespace)
    before = deployments.everything()
    cluster.apply(pool_manifest(slots=2, members=6), namespace)
    apply_members(deployments, *MANY, maxModelLen=256)
    yield driver, deployments
    for model in MANY:
        deployments.delete(model)
    cluster.kubectl("delete", "gpool", POOL, "-n", namespace)
    wait_until_none(lambda: deployments.everything() - before)
    cluster.kubectl("delete", "pvc", name, "-n", namespace)
    cluster.kubectl("delete", "pv", name)
    driver.stop()


@pytest.fixture
def reserved(cluster: Cluster, namespace: str, deployments: Deployments) -> Iterator[Deployments]:
    """One GPU of a device plugin, a pool that reserves it, two members. All is gone before the plugin ends."""
    assert cluster.local, "the plugin talks to the kubelet of localkube"
    plugin, name = gpus.Driver(1, "--device-plugin"), f"{namespace}-stand-ins"
    for manifest in gpus.volume(name, namespace):
        cluster.apply(manifest, namespace)
    before = deployments.everything()
    pool = pool_manifest(slots=1)
    pool["spec"]["device"] = {"reservation": {"resourceName": RESOURCE, "visibleDevicesVariable": VARIABLE}}
    cluster.apply(pool, namespace)
    apply_members(deployments, FIRST, SECOND)
    yield deployments
    for model in (FIRST, SECOND):
        deployments.delete(model)
    # the pod does not go with its pool: that would take its minute, which a kubelet that began it does not shorten
    cluster.kubectl("delete", "gpool", POOL, "-n", namespace, "--cascade=orphan")
    cluster.kubectl("delete", "pod", RESERVATION, "-n", namespace, "--ignore-not-found", "--grace-period=1")
    wait_until_none(lambda: deployments.everything() - before)
    cluster.kubectl("delete", "pvc", name, "-n", namespace)
    cluster.kubectl("delete", "pv", name)
    plugin.stop()


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


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_bill_has_the_minutes_of_who_had_the_gpu_and_of_who_slept_beside_it(
    members: Deployments, prometheus: Prometheus, model_of: Models, eventually: Callable[..., Any]
) -> None:
    for name in (FIRST, SECOND):
        members.wait(name, 'jsonpath={.status.conditions[?(@.type=="Ready")].reason}=Asleep', timeout_s=300)
        assert len(model_of(name).greedy(PROMPTS[name], NUM_TOKENS)) == NUM_TOKENS

    def billed() -> bool:
        """Return whether a minute was billed: it counts as it is when the clock's minute ends."""
        minutes = minutes_by_model(members.cluster, members.namespace, prometheus)
        return {"awake", "asleep"} <= {state for name in (FIRST, SECOND) for state, n in minutes[name].items() if n}

    eventually(billed)


def test_a_model_for_vectors_and_one_that_chats_alternate_on_one_gpu(
    members: Deployments, device: Path, model_of: Models, gateway: rpc.InferenceStub, tiny_model: Path, tmp_path: Path
) -> None:
    path = write_tiny_encoder(tmp_path, modules=("mean_tokens", "normalize"))
    folders = {VECTORS: path}
    fill_claim(members.cluster, namespace=members.namespace, claim="models", image=worker_image(), folders=folders)
    apply_members(members, VECTORS, uri=f"pvc://models/{VECTORS}", maxModelLen=64, maxNumBatchedTokens=64)
    for name in (FIRST, VECTORS):
        members.wait(name, 'jsonpath={.status.conditions[?(@.type=="Ready")].reason}=Asleep')
    said = reference.greedy_tokens(tiny_model, PROMPTS[FIRST], NUM_TOKENS)
    vector = normalize(reference_hidden(path, PROMPTS[SECOND]).mean(0), dim=0).tolist()
    asked = pb.EmbedRequest(model=VECTORS, inputs=[pb.EmbedInput(token_ids=pb.TokenIds(ids=PROMPTS[SECOND]))])
    for _ in range(2):
        assert list(gateway.Embed(asked, timeout=60).embeddings[0].values) == pytest.approx(vector, abs=1e-5)
        assert model_of(FIRST).greedy(PROMPTS[FIRST], NUM_TOKENS) == said
    marks = read_usage(device).marks
    assert (marks.most_awake, marks.over_size_bytes, marks.over_budget_bytes) == (1, 0, 0)


def test_without_claims_a_pod_reserves_the_gpu_of_a_device_plugin_and_two_models_take_turns_on_it(
    reserved: Deployments, model_of: Models, tiny_model: Path, eventually: Callable[..., Any]
) -> None:
    for name in (FIRST, SECOND):
        reserved.wait(name, 'jsonpath={.status.conditions[?(@.type=="Ready")].reason}=Asleep')
    for name in (FIRST, SECOND, FIRST):
        expected = reference.greedy_tokens(tiny_model, PROMPTS[name], NUM_TOKENS)
        assert model_of(name).greedy(PROMPTS[name], NUM_TOKENS, timeout_s=280) == expected
        eventually(lambda name=name: holders(reserved) == [f"{name}[0]"])
    assert slot_of(reserved)["devices"] == ["gpu-0"]
    for name in (FIRST, SECOND):
        [pod] = reserved.pods(name)
        assert "resourceClaims" not in pod["spec"]
        [worker] = pod["spec"]["containers"]
        assert {"name": VARIABLE, "value": "gpu-0"} in worker["env"]
        assert RESOURCE not in (worker["resources"].get("limits") or {}), "the reservation has it"
    marks = read_usage(gpus.FOLDER / "gpu-0").marks
    assert (marks.most_awake, marks.over_size_bytes, marks.over_budget_bytes) == (1, 0, 0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_six_models_on_two_gpus_lose_no_call_and_no_token_while_the_driver_is_killed(
    town: tuple[gpus.Driver, Deployments], model_of: Models, tiny_model: Path
) -> None:
    driver, members = town
    for name in MANY:
        members.wait(name, 'jsonpath={.status.conditions[?(@.type=="Ready")].reason}=Asleep', timeout_s=300)
    expected = {
        length: reference.greedy_tokens(tiny_model, PROMPTS[FIRST][:length], NUM_TOKENS) for length in (2, 3, 4)
    }

    def call(seed: int) -> int:
        """Call models one after the other; return how many other models each call came behind."""
        rng, last, changes = random.Random(seed), "", 0
        for _ in range(NUM_CALLS):
            name, length = rng.choice(MANY), rng.choice((2, 3, 4))
            told = model_of(name).greedy(PROMPTS[FIRST][:length], NUM_TOKENS, timeout_s=280)
            assert told == expected[length], name
            changes, last = changes + (name != last), name
        return changes

    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        calls = [clients.submit(call, seed) for seed in range(NUM_CLIENTS)]
        with driver.killed():
            wait([calls[0]], timeout=5)
        assert all(done.result() > NUM_CALLS // 2 for done in calls), "nothing lost, every token right, in many turns"
    slots = members.cluster.get("gpool", POOL, members.namespace)["status"]["slots"]
    assert {device for slot in slots for device in slot["devices"]} == {
        f"{DRIVER}/{slots[0]['node']}/gpu-{number}" for number in range(2)
    }
    assert sum(sum(members.restarts(name)) for name in MANY) == 0
    for number in range(2):
        marks = read_usage(gpus.FOLDER / f"gpu-{number}").marks
        assert (marks.most_awake, marks.over_size_bytes, marks.over_budget_bytes) == (1, 0, 0)
