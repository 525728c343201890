"""A model of a GGUF file asleep, cut for ranks, rounded again, and saved."""

import pytest
import torch

from dormouse_worker.common.errors import ModelChanged
from dormouse_worker.common.host import Host
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.files.gguf.folder import as_directory
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.device.testing import FakeDevice
from dormouse_worker.model.quantized.modules import QuantizedLinear
from dormouse_worker.model.weights.sharded import save_sharded_state
from tests.worker.model.quantized.gguf.kit import differing, kept, tensors_of


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "BF16"])
@pytest.mark.parametrize("level", [1, 2])
def test_a_sleep_brings_the_same_weights_back(load_from, model_file, level, kind):
    device = CpuDevice(Host()) if kind.startswith("Q") else FakeDevice()
    model = load_from(model_file("llama", {"": kind})[1], device, dtype="bfloat16")
    before = tensors_of(model)
    sleep(model, level)
    assert not differing(tensors_of(model), before)


def sleep(model, level):
    model.weights.save(level)
    model.weights.drop()
    model.weights.reserve()
    model.weights.restore()
    model.weights.arrive()
    model.weights.settle()


def test_a_file_that_changed_during_a_sleep_is_refused(load_from, model_file):
    _, file = model_file("llama", {"": "Q8_0"})
    model = load_from(file)
    raw = bytearray(file.read_bytes())
    raw[-100] ^= 1
    file.write_bytes(raw)
    with pytest.raises(ModelChanged, match="is not what was loaded before the sleep"):
        sleep(model, 2)


def plain_of(part):
    """Return the weight that a map stands for."""
    is_packed = isinstance(part, QuantizedLinear)
    return part.format.dequantize(part.weight, part.weight_scale, part.in_features) if is_packed else part.weight


@pytest.mark.parametrize("kind", ["Q8_0", "Q6_K", "Q4_0", "Q4_1"])
def test_each_rank_reads_its_part(load_from, model_file, kind):
    _, file = model_file("llama", {"": kind})
    whole = load_from(file, attention_backend="sdpa").module
    ranks = [load_from(file, layout=Layout(tensor=2, rank=rank)).module for rank in range(2)]
    for path, dimension in (("model.layers.0.self_attn.q_proj", 0), ("model.layers.1.mlp.down_proj", 1)):
        expected = whole.get_submodule(path).weight
        parts = [plain_of(rank.get_submodule(path)).to(expected.dtype) for rank in ranks]
        assert torch.equal(torch.cat(parts, dimension), expected)


@pytest.mark.parametrize("method", ["int8", "int4"])
def test_they_may_be_rounded_again(load_from, model_file, method):
    model = load_from(model_file("llama", {"": "Q8_0"})[1], quantization=method)
    assert model.module.get_submodule("model.layers.1.mlp.down_proj").format.name == method


def test_adapters_stand_beside_weights_that_keep_their_bits(load_from, model_file):
    assert kept(load_from(model_file("llama", {"": "Q4_0"})[1], enable_lora=True, max_loras=1))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q6_K", "Q8_0"])
def test_what_was_saved_is_what_is_loaded(load_from, model_file, tmp_path, kind):
    _, file = model_file("llama", {"": kind}, tie_word_embeddings=False)
    first = load_from(file)
    made = as_directory(EngineSettings(model=str(file), tokenizer_cache=str(tmp_path / "cache"))).model_path
    save_sharded_state(first.weights, made, tmp_path / "saved")
    second = load_from(tmp_path / "saved", load_format="sharded_state")
    assert not differing(tensors_of(second), tensors_of(first))
    assert kept(second) == kept(first)
