"""What a worker asks of its node: what the user says, one GPU, and memory by the model's size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dormouse_operator.manifests import WorkerDefaults, pod_digest_of, pod_manifest
from dormouse_operator.manifests.resources import adapter_bytes
from dormouse_operator.model import DeviceClaim, Engine
from dormouse_operator.parse import parse_deployment

METADATA = {"namespace": "team", "name": "tiny", "uid": "u1"}


def pod(**spec):
    body = {"model": {"uri": "file:///model"}, **spec}
    deployment = parse_deployment({"metadata": METADATA, "spec": body})
    return pod_manifest(deployment, image="worker:1", index=0, defaults=WorkerDefaults("Always", "a", "b"))["spec"]


def resources(**spec):
    return pod(**spec)["containers"][0]["resources"]


def sized(size, device, **engine):
    return resources(model={"uri": "file:///model", "size": size}, engine={"device": device, **engine})


def test_a_worker_on_cuda_asks_for_one_gpu():
    assert resources() == {"limits": {"nvidia.com/gpu": 1}}
    assert resources(gpu={"resourceName": "amd.com/gpu"}) == {"limits": {"amd.com/gpu": 1}}


def test_claims_take_the_place_of_an_extended_resource():
    own = {"name": "gpu", "resourceClaimTemplateName": "one-gpu", "request": "big"}
    shared = {"name": "link", "resourceClaimName": "fabric"}
    spec = pod(gpu={"claims": [own, shared]})
    assert spec["containers"][0]["resources"] == {"claims": [{"name": "gpu", "request": "big"}, {"name": "link"}]}
    assert spec["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}, shared]


def test_a_pod_without_claims_has_no_word_of_them_and_the_digest_of_before():
    deployment = parse_deployment({"metadata": METADATA, "spec": {"model": {"uri": "file:///model"}}})
    claiming = replace(deployment, placement=replace(deployment.placement, claims=(DeviceClaim(name="a", claim="b"),)))
    assert "resourceClaims" not in pod()
    assert pod_digest_of(deployment, "worker:1") == "0dcabd9a"
    assert pod_digest_of(claiming, "worker:1") != "0dcabd9a"


def test_a_worker_on_cpu_asks_for_no_gpu_unless_told():
    assert resources(engine={"device": "cpu"}) == {}
    limits = {"limits": {"nvidia.com/gpu": 1}}
    assert resources(engine={"device": "cpu"}, resources=limits) == limits


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({"limits": {"nvidia.com/gpu": 2}}, {"limits": {"nvidia.com/gpu": 2}}),
        ({"requests": {"nvidia.com/gpu": 2}}, {"limits": {"nvidia.com/gpu": 2}, "requests": {"nvidia.com/gpu": 2}}),
        ({"requests": {"cpu": 2}}, {"limits": {"nvidia.com/gpu": 1}, "requests": {"cpu": 2}}),
    ],
)
def test_what_the_user_says_about_gpus_wins(given, asked):
    assert resources(resources=given) == asked


def test_memory_on_a_gpu_holds_the_pinned_copy():
    assert sized("16Gi", "cuda", swapSpace="2Gi") == {
        "limits": {"nvidia.com/gpu": 1, "memory": f"{22 * 1024}Mi"},
        "requests": {"memory": f"{22 * 1024}Mi"},
    }


def test_memory_on_cpu_leaves_the_cache_within_the_share_that_may_be_used():
    exact = {"memory": f"{(1 + 3 + 2 + 2) * 1024 * 2}Mi"}
    engine = {"kvCacheMemory": "3Gi", "swapSpace": "2Gi", "gpuMemoryUtilization": 0.5}
    assert sized("1Gi", "cpu", **engine) == {"limits": exact, "requests": exact}
    assert sized("1Gi", "cpu")["limits"] == {"memory": "4552Mi"}  # (1 + 1 + 2) GiB / 0.9


@pytest.mark.parametrize(("device", "mebibytes"), [("cuda", (16 + 4) * 1024 + 512), ("cpu", 22187)])
def test_a_spare_engine_has_memory_as_the_rest_of_both_processes(device, mebibytes):
    found = resources(
        model={"uri": "file:///model", "size": "16Gi"}, engine={"device": device}, lifecycle={"spareEngine": True}
    )
    assert found["limits"]["memory"] == f"{mebibytes}Mi"


# of a real model: layers, inputs and outputs of all linear layers of one, weights in all
SHAPES = {
    "SmolLM2-135M": (30, 10_176, 134_515_008),
    "Qwen2.5-0.5B": (24, 22_912, 494_032_768),
    "Llama-2-7B": (32, 78_080, 6_738_415_616),
    "Llama-3-70B": (80, 164_352, 70_553_706_496),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_adapters_have_memory_as_they_take_and_not_much_more(shape):
    num_layers, width, num_weights = shape
    engine = Engine(device="cpu", enable_lora=True, max_loras=3, max_cpu_loras=5, max_lora_rank=32)
    exact = 2 * 32 * num_layers * width * (3 + 5)
    assert exact <= adapter_bytes(engine, 2 * num_weights) <= 2.5 * exact


def test_adapters_take_host_memory_for_copies_and_on_cpu_for_slots():
    loras = {"enableLora": True, "maxLoras": 2, "maxLoraRank": 8}
    size = 2**30  # a slot: 2 · 8 · 2^20 bytes
    for device, lacking, places in (("cuda", {}, 2), ("cpu", {"gpuMemoryUtilization": 1.0}, 4)):
        without = sized(size, device, **lacking)["limits"]["memory"]
        beside = sized(size, device, **lacking, **loras)["limits"]["memory"]
        assert int(beside[:-2]) - int(without[:-2]) == 16 * places
    assert adapter_bytes(Engine(enable_lora=True), size) == 2 * 16 * 2**20


@pytest.mark.parametrize("given", [{"limits": {"memory": "5Gi"}}, {"requests": {"memory": "5Gi"}}])
def test_explicit_memory_wins(given):
    model = {"uri": "file:///model", "size": "16Gi"}
    assert resources(model=model, engine={"device": "cpu"}, resources=given) == given


def test_shared_memory_is_there_for_cuda_only_and_a_template_sizes_it():
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
    assert shm in pod()["volumes"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in pod()["containers"][0]["volumeMounts"]
    assert [volume["name"] for volume in pod(engine={"device": "cpu"})["volumes"]] == ["tmp"]
    larger = pod(template={"spec": {"volumes": [{"name": "shm", "emptyDir": {"sizeLimit": "8Gi"}}]}})["volumes"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}} in larger


async def test_a_gpu_that_no_node_offers_is_told_in_the_schedulers_words(rig):
    rig.node.is_full = True
    rig.apply(engine={"device": "cuda"})
    await rig.settle()
    assert rig.condition("Accepted")[0] == "True"
    assert rig.condition("Scheduled")[:2] == ("False", "Unschedulable")
    assert "0/1 nodes are available" in rig.condition("Scheduled")[2]
