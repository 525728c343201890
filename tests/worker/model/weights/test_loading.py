"""Loading whole models: whichever way is taken, what lies in memory is what transformers would have loaded."""

import json
import logging

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from dormouse_worker.common.errors import InsufficientMemory, ModelChanged, ModelInvalid, ModelNotFound
from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.device.testing import FakeCudaDriver, FakeDevice
from dormouse_worker.model.loader import load
from dormouse_worker.model.testing import ARCHITECTURES, write_tiny_model
from dormouse_worker.model.weights.kind import GENERATES
from dormouse_worker.model.weights.skeleton import build_skeleton, iter_tensors

CONVERTED = {"deepseek_v3", "glm4_moe", "gpt_neox", "mixtral", "qwen3_moe"}  # joined experts, another name of the head
GIB = 1 << 30
TINY_YOUTU = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "max_position_embeddings": 128,
}


@pytest.fixture
def load_from():
    """Return a function (directory, device, settings) → loaded model, whose memory goes in the end."""
    models = []

    def load_one(directory, device=None, **settings):
        models.append(load(EngineSettings(model=str(directory), block_size=4, **settings), device or FakeDevice()))
        return models[-1]

    yield load_one
    for model in models:
        model.weights.close()


def snapshot(module):
    return {name: tensor.detach().clone() for name, tensor in iter_tensors(module)}


CAST = ("llama", "gpt_oss", "deepseek_v3")  # some tensors of the latter two stay float32


def assert_equal(tensors, others):
    assert tensors.keys() == others.keys()
    assert not [name for name in tensors if tensors[name].dtype != others[name].dtype]
    assert not [name for name in tensors if not torch.equal(tensors[name], others[name])]


def sleep_and_wake(store, level):
    store.save(level)
    store.drop()
    store.reserve()
    store.restore()
    store.settle()


@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [
        pytest.param(name, dtype, marks=() if dtype == "auto" or name in CAST else pytest.mark.slow)
        for name in ARCHITECTURES
        for dtype in ("auto", "bfloat16", "float16")
    ],
)
def test_every_tensor_is_the_one_that_transformers_loads(tiny_model, load_from, architecture, dtype):
    directory = tiny_model(architecture)
    model = load_from(directory, dtype=dtype)
    wanted = "auto" if dtype == "auto" else getattr(torch, dtype)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=wanted)
    assert_equal(snapshot(model.module), snapshot(reference))
    assert model.load_report.path == ("transformers" if architecture in CONVERTED else "fast")


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_tensor_returns_to_its_address(tiny_model, load_from, architecture, load_format):
    model = load_from(tiny_model(architecture), load_format=load_format)
    before = snapshot(model.module)
    addresses = {name: tensor.data_ptr() for name, tensor in iter_tensors(model.module)}
    for level in (1, 2):
        sleep_and_wake(model.weights, level)
        assert_equal(snapshot(model.module), before)
        assert {name: tensor.data_ptr() for name, tensor in iter_tensors(model.module)} == addresses


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_tensor_lies_outside_the_arena(tiny_model, load_from, architecture):
    model = load_from(tiny_model(architecture), CpuDevice(Host()))
    arena = model.weights.tensor(model.weights.layout.slots[0].name)
    start = arena.untyped_storage().data_ptr()
    end = start + model.weights.num_bytes
    assert all(start <= tensor.data_ptr() < end for _, tensor in iter_tensors(model.module) if tensor.numel())


def test_random_weights_differ_from_tensor_to_tensor_and_are_about_as_wide_as_trained_ones(tiny_model, load_from):
    module = load_from(tiny_model("llama"), load_format="dummy").module
    first, second = (module.model.layers[i].mlp.up_proj.weight for i in range(2))
    assert not torch.equal(first, second)
    assert 0.018 < first.std() < 0.022
    assert abs(first.mean()) < 0.002
    assert (module.model.norm.weight - 1).abs().max() < 0.1


def test_shards_with_an_index_are_read_without_transformers(tmp_path, tiny_model, load_from):
    whole = AutoModelForCausalLM.from_pretrained(tiny_model("llama"))
    whole.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    model = load_from(tmp_path)
    assert model.load_report.path == "fast"
    assert_equal(snapshot(model.module), snapshot(whole))


def test_a_tied_tensor_that_the_files_have_twice_is_what_transformers_makes_of_it(tmp_path, load_from):
    """Equal ones are tied; others are not, whatever the configuration says."""
    directory = write_tiny_model(tmp_path, tie_word_embeddings=True)
    tensors = load_file(directory / "model.safetensors")
    for head in (tensors["model.embed_tokens.weight"], torch.randn(260, 32)):
        save_file({**tensors, "lm_head.weight": head.clone()}, directory / "model.safetensors", {"format": "pt"})
        model = load_from(directory)
        assert torch.equal(model.module.lm_head.weight, head)
        assert torch.equal(model.module.model.embed_tokens.weight, tensors["model.embed_tokens.weight"])


def test_the_type_is_that_of_the_files_where_the_configuration_names_none(tmp_path, load_from):
    directory = write_tiny_model(tmp_path)
    tensors = {name: t.to(torch.float16) for name, t in load_file(directory / "model.safetensors").items()}
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    del config["dtype"]
    (directory / "config.json").write_text(json.dumps(config))
    assert load_from(directory).info.dtype == "float16"


def test_an_embedding_row_that_transformers_zeroes_after_reading_is_zero(tmp_path, load_from):
    """As youtu does with that of its padding; the files have other numbers there."""
    directory = tmp_path
    config = AutoConfig.for_model(
        "youtu", **{**TINY_YOUTU, "vocab_size": 260, "pad_token_id": 7, "bos_token_id": 0, "eos_token_id": 1}
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.embed_tokens.weight"] += 1
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    reference = AutoModelForCausalLM.from_pretrained(directory)
    assert not reference.model.embed_tokens.weight[7].any()
    assert_equal(snapshot(load_from(directory).module), snapshot(reference))


def test_a_skeleton_of_many_gigabytes_takes_no_memory():
    config = AutoConfig.for_model("llama", hidden_size=8192, num_hidden_layers=8, vocab_size=128_000)
    before = Host().resident_bytes()
    skeleton = build_skeleton(config, torch.bfloat16, GENERATES)
    assert sum(parameter.nbytes for parameter in skeleton.module.parameters()) > 8 * GIB
    assert Host().resident_bytes() - before < GIB, "the rest is code that is imported, and what others do"


def test_the_log_says_how_fast_it_was(tiny_model, load_from, caplog):
    with caplog.at_level(logging.INFO):
        model = load_from(tiny_model("llama"))
    assert str(model.load_report) in caplog.text
    assert "GB/s (auto, fast)" in caplog.text


def test_a_model_that_the_device_can_not_hold_leaves_nothing_on_it(tiny_model, load_from):
    driver = FakeCudaDriver(1 << 20)
    with pytest.raises(InsufficientMemory, match=r"take 2\.0 MiB on the device, 1\.0 MiB are free"):
        load_from(tiny_model("llama"), FakeDevice(driver))
    assert driver.used_bytes == 0


def test_a_model_that_does_not_run_leaves_nothing_on_the_device(tmp_path, load_from):
    directory = write_tiny_model(tmp_path)
    config = json.loads((directory / "config.json").read_text())
    config["layer_types"] = ["full_attention", "sliding_attention"]
    (directory / "config.json").write_text(json.dumps(config))
    device = FakeDevice()
    with pytest.raises(ModelInvalid, match="hides its sliding window"):
        load_from(directory, device)
    assert device.memory.used_bytes == 0
    assert "0 chunks" in repr(device.copies)


def truncate(directory):
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def replace_number(directory):
    tensors = load_file(directory / "model.safetensors")
    tensors["model.norm.weight"][7] += 1
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def replace_type(directory):
    tensors = load_file(directory / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].double()
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("architecture", ["llama", "mixtral"])
@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (lambda directory: directory.rename(directory.with_name("elsewhere")), ModelNotFound, "no such directory"),
        (lambda directory: (directory / "model.safetensors").unlink(), ModelInvalid, "neither model.safetensors nor"),
        (truncate, ModelInvalid, "truncated or damaged"),
        (replace_number, ModelChanged, "model.norm.weight is not what was loaded"),
    ],
)
def test_files_that_are_not_what_they_were_leave_it_asleep(tmp_path, load_from, architecture, damage, error, message):
    directory = write_tiny_model(tmp_path / "model", architecture)
    spare = write_tiny_model(tmp_path / "spare", architecture)
    device = FakeDevice()
    model = load_from(directory, device)
    before = snapshot(model.module)
    model.weights.save(2)
    model.weights.drop()
    damage(directory)
    with pytest.raises(error, match=message):
        model.weights.restore()
    assert model.weights.is_asleep
    assert (device.memory.used_bytes, model.weights.host_copy_bytes) == (0, 0)
    directory.mkdir(exist_ok=True)
    for file in spare.iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    model.weights.restore()
    assert_equal(snapshot(model.module), before)


def test_a_tensor_of_another_type_is_told_even_where_it_could_be_converted(tmp_path, load_from):
    directory = write_tiny_model(tmp_path)
    model = load_from(directory)
    model.weights.save(2)
    model.weights.drop()
    replace_type(directory)
    with pytest.raises(ModelChanged, match=r"model\.norm\.weight was F32 \[32\] and is F64 \[32\]"):
        model.weights.restore()
