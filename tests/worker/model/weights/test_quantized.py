"""Quantized models: transformers' quantizer loads them, their parts lie in the arena, and they sleep like others."""

import pytest
import torch
from torchao.quantization import Int8Tensor, Int8WeightOnlyConfig
from transformers import AutoModelForCausalLM, TorchAoConfig

from dormouse_worker.common.errors import InvalidArgument
from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.batch import NewSequence, single
from dormouse_worker.engine.testing import make_sampling
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.device.testing import FakeDevice
from dormouse_worker.model.golden import record_golden
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.model.loader import load
from dormouse_worker.model.runner import ModelRunner
from dormouse_worker.model.testing import reference_generate, write_tiny_tokenizer
from dormouse_worker.model.weights.sharded import save_sharded_state
from dormouse_worker.model.weights.skeleton import iter_tensors

PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def directory(tiny_model, tmp_path_factory):
    """Return a checkpoint whose linear maps torchao made int8."""
    quantized = tmp_path_factory.mktemp("int8")
    quantization = TorchAoConfig(Int8WeightOnlyConfig())
    model = AutoModelForCausalLM.from_pretrained(tiny_model("llama"), quantization_config=quantization)
    model.save_pretrained(quantized)
    write_tiny_tokenizer(quantized)
    return quantized


@pytest.fixture(params=[FakeDevice, lambda: CpuDevice(Host())], ids=["fake", "cpu"])
def model(request, directory):
    model = load(EngineSettings(model=str(directory), block_size=4), request.param())
    yield model
    model.weights.close()


def make_runner(model):
    cache, host_cache = (KVCache(model.cache_spec, count, torch.device("cpu")) for count in (16, 0))
    return ModelRunner(model, cache, host_cache, SdpaBackend(), max_num_seqs=2)


def golden(model):
    return record_golden(make_runner(model).execute, vocab_size=260, max_model_len=128, block_size=4)


def test_the_parts_of_quantized_weights_lie_in_the_arena(model):
    weight = model.module.model.layers[0].mlp.up_proj.weight
    assert isinstance(weight.data, Int8Tensor)
    names = [slot.name for slot in model.weights.layout.slots]
    assert {"model.layers.0.mlp.up_proj.weight/qdata", "model.layers.0.mlp.up_proj.weight/scale"} <= set(names)
    start = model.weights.tensor(names[0]).data_ptr()
    addresses = [tensor.data_ptr() for _, tensor in iter_tensors(model.module)]
    assert all(start <= address < start + model.weights.num_bytes for address in addresses)
    assert model.weights.tensor("model.layers.0.mlp.up_proj.weight/qdata").dtype == torch.int8
    assert (model.load_report.path, model.impl) == ("transformers", "transformers")


def test_it_says_the_same_after_every_sleep(model):
    before = golden(model)
    assert len(set(before.token_ids)) > 3
    for level in (1, 2):
        model.weights.save(level)
        model.weights.drop()
        model.weights.reserve()
        model.weights.restore()
        model.weights.settle()
        assert golden(model) == before


def test_it_says_what_transformers_says(model, directory):
    batch = single(NewSequence("r", PROMPT, [], make_sampling()), ([0, 1],))
    (sampled,) = make_runner(model).execute(batch).sampled
    assert [sampled.token_id] == reference_generate(directory, PROMPT, 1)


def test_there_is_no_sharded_state_of_it(model, directory, tmp_path):
    with pytest.raises(InvalidArgument, match="quantized models have no sharded state"):
        save_sharded_state(model.weights, directory, tmp_path / "out")
