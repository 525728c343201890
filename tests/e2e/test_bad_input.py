"""Each kind of bad input is refused with a message that names field, value and limit, and disturbs nothing else."""

from __future__ import annotations

import json
import math
import re
import shutil

import grpc
import pytest

from dormouse_api.v1 import inference_pb2 as pb
from tests.e2e.kit import stays
from tools.kubectl import CommandFailed, fill_claim
from tools.release import worker_image

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def refused(shared, name="refused", **spec):
    """Apply a resource that the API server must refuse and return its words."""
    with pytest.raises(CommandFailed) as caught:
        shared.cluster.apply(shared.manifest(name, **spec), shared.namespace)
    return str(caught.value)


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"replicas": -1}, ["spec.replicas", "-1", "0"]),
        ({"engine": {"maxModelLen": 0}}, ["spec.engine.maxModelLen", "0", "1"]),
        ({"engine": {"maxNumSeqs": -4}}, ["spec.engine.maxNumSeqs", "-4", "1"]),
        ({"engine": {"blockSize": 0}}, ["spec.engine.blockSize", "0"]),
        ({"engine": {"kvCacheMemory": "-1Gi"}}, ["spec.engine.kvCacheMemory", "-1Gi"]),
        ({"engine": {"gpuMemoryUtilization": 1.5}}, ["spec.engine.gpuMemoryUtilization", "1.5", "1"]),
        ({"model": {"uri": "s3://bucket/model"}}, ["spec.model.uri", "s3://bucket/model", "pvc://"]),
        ({"gpu": {"resourceName": "nvidia.com/gpu"}}, ["gpu", "cpu"]),
        ({"engine": {"maxModelLength": 12}}, ["unknown field", "spec.engine.maxModelLength"]),
        ({"replica": 2}, ["unknown field", "spec.replica"]),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)
def test_the_api_server_refuses(shared, spec, named):
    words = refused(shared, **spec)
    assert [name for name in named if name not in words] == [], words


def test_the_api_server_refuses_a_name_that_is_too_long_for_derived_names(shared):
    assert "40" in refused(shared, name="n" * 41)


BAD_REQUESTS = {
    "empty prompt": (pb.GenerateRequest(text=""), ["prompt", "empty"]),
    "no prompt": (pb.GenerateRequest(), ["prompt"]),
    "token outside the vocabulary": (pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, 4096])), ["4096", "token_ids"]),
    "beyond the model length": (
        pb.GenerateRequest(text="a", sampling_params=pb.SamplingParams(max_tokens=512)),
        ["max_tokens", "512"],
    ),
    "NaN temperature": (
        pb.GenerateRequest(text="a", sampling_params=pb.SamplingParams(temperature=math.nan)),
        ["temperature", "nan"],
    ),
    "negative temperature": (
        pb.GenerateRequest(text="a", sampling_params=pb.SamplingParams(temperature=-0.5)),
        ["temperature", "-0.5"],
    ),
    "top_p zero": (pb.GenerateRequest(text="a", sampling_params=pb.SamplingParams(top_p=0)), ["top_p", "0"]),
    "top_p above one": (pb.GenerateRequest(text="a", sampling_params=pb.SamplingParams(top_p=1.5)), ["top_p", "1.5"]),
    "too many stop strings": (
        pb.GenerateRequest(text="a", sampling_params=pb.SamplingParams(stop=["a", "b", "c", "d", "e"])),
        ["stop", "5", "4"],
    ),
    "too many logprobs": (
        pb.GenerateRequest(text="a", sampling_params=pb.SamplingParams(logprobs=21)),
        ["logprobs", "21", "20"],
    ),
    "a message over 1 MiB": (pb.GenerateRequest(text="a" * (1 << 20)), ["1048576"]),
    "resume from a client": (pb.GenerateRequest(text="a", resume=pb.Resume(output_token_ids=[1])), ["resume"]),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_a_bad_request_is_invalid_argument_and_names_field_value_and_limit(model, case):
    request, named = BAD_REQUESTS[case]
    with pytest.raises(grpc.RpcError) as caught:
        model.generate(pb.GenerateRequest.FromString(request.SerializeToString()))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, caught.value.details()
    assert [name for name in named if name not in caught.value.details().lower()] == [], caught.value.details()
    assert model.greedy([5, 6, 7], 4), "the model still answers"


def test_an_unknown_model_is_not_found_and_the_known_ones_are_named(model):
    with pytest.raises(grpc.RpcError) as caught:
        model.generate(pb.GenerateRequest(model="nobody", text="a"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert "shared" in caught.value.details()


BROKEN_MODELS = {
    "missing-directory": ("nothing-here", "ModelNotFound", "nothing-here"),
    "truncated-weights": ("truncated", "ModelInvalid", "model.safetensors"),
    "custom-code": ("custom-code", "CustomCodeRefused", "auto_map"),
    "pickle-weights": ("pickle", "PickleRefused", "pytorch_model.bin"),
}


@pytest.fixture(scope="module")
def broken_models(cluster, namespace, tiny_model, tmp_path_factory):
    """Broken copies of the small model on the run's volume."""
    root = tmp_path_factory.mktemp("broken")
    folders = {name: shutil.copytree(tiny_model, root / name) for name in ("truncated", "custom-code", "pickle")}
    weights = folders["truncated"] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    config = folders["custom-code"] / "config.json"
    remade = {
        **json.loads(config.read_text()),
        "model_type": "evil",
        "auto_map": {"AutoModelForCausalLM": "modeling.Evil"},
    }
    config.write_text(json.dumps(remade))
    (folders["pickle"] / "model.safetensors").rename(folders["pickle"] / "pytorch_model.bin")
    fill_claim(cluster, namespace=namespace, claim="models", image=worker_image(), folders=folders)


@pytest.mark.usefixtures("broken_models")
def test_a_broken_model_is_a_condition_and_the_pod_does_not_crash_loop(deployments):
    for name, (directory, _, _) in BROKEN_MODELS.items():
        deployments.apply(name, model={"uri": f"pvc://models/{directory}"})
    for name, (_, reason, named) in BROKEN_MODELS.items():
        deployments.wait(name, 'jsonpath={.status.conditions[?(@.type=="ModelLoaded")].status}=False')
        deployments.wait(name, f'jsonpath={{.status.conditions[?(@.type=="ModelLoaded")].reason}}={reason}')
        assert named in deployments.condition(name, "ModelLoaded")["message"]
    stays(lambda: {name: deployments.restarts(name) for name in BROKEN_MODELS}, {name: [0] for name in BROKEN_MODELS})


def test_more_model_length_than_blocks_can_hold_is_a_condition_with_both_numbers_and_the_knob(deployments):
    deployments.apply("too-long", engine={"maxModelLen": 2048, "kvCacheMemory": "1Mi"})
    deployments.wait("too-long", 'jsonpath={.status.conditions[?(@.type=="MemoryProfiled")].status}=False')
    message = deployments.condition("too-long", "MemoryProfiled")["message"]
    assert "2048" in message
    assert "kvCacheMemory" in message
    most = re.search(r"set maxModelLen to at most (\d+)", message)
    assert most, message
    assert deployments.restarts("too-long") == [0]
    deployments.patch("too-long", {"engine": {"maxModelLen": int(most[1])}})
    deployments.wait("too-long", "condition=Ready")
    cache = deployments.status("too-long")["kvCache"]
    assert cache["numGpuBlocks"] * cache["blockSize"] == int(most[1])
