"""gpt-oss's experts in MXFP4: exact, the tokens of transformers, asleep, awake, saved, cut, or refused by name."""

import functools

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from dormouse_worker.common.errors import InvalidSettings, ModelInvalid
from dormouse_worker.common.host import Host
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.device.testing import FakeDevice
from dormouse_worker.model.forward.choose import describe_path
from dormouse_worker.model.loader import load
from dormouse_worker.model.quantized.modules import PackedExperts, name_of_kernels
from dormouse_worker.model.quantized.mxfp4 import expand, pack
from dormouse_worker.model.testing import reference_generate, write_tiny_model
from dormouse_worker.model.weights.layout import Slot
from dormouse_worker.model.weights.sharded import save_sharded_state
from dormouse_worker.model.weights.skeleton import iter_tensors
from tests.worker.model.quantized.packed_experts import EXPERTS, SAID, draw, write_packed
from tests.worker.model.test_parity import PROMPTS, make_engine, run

MAX_TOKENS = 10


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Return a checkpoint that nobody changes."""
    return write_packed(tmp_path_factory.mktemp("mxfp4"))


@pytest.fixture
def load_from():
    """Return a function (directory, device, layout, settings) → loaded model, whose memory goes in the end."""
    models = []

    def load_one(directory, device=None, layout=None, **settings):
        fields = EngineSettings(model=str(directory), block_size=4, **{"dtype": "float32", **settings})
        models.append(load(fields, device or CpuDevice(Host()), layout))
        return models[-1]

    yield load_one
    for model in models:
        model.weights.close()


def tensors_of(model):
    return {name: tensor.clone() for name, tensor in iter_tensors(model.module)}


def packed(blocks, scales):
    """Return the chunks [experts, out, bytes] of what lies in the files."""
    chunks = pack(blocks.view(-1, 16).numpy(), scales.view(-1).numpy())
    return torch.from_numpy(chunks).view(*scales.shape[:2], -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chunks_stand_for_the_very_weights_that_transformers_makes(dtype):
    blocks, scales = draw(2, 40, 96, least=0, most=253)
    scales.view(-1)[:2] = torch.tensor([0, 252])
    expected = convert_moe_packed_tensors(blocks, scales, dtype=dtype)
    for weight, plain in zip(packed(blocks, scales), expected, strict=True):
        assert torch.equal(expand(weight, dtype), plain.T)
        assert plain.isfinite().all()


@pytest.mark.parametrize("attention", ["native", "sdpa"])
def test_tokens_are_those_of_transformers_alone_and_together(load_from, directory, attention):
    model = load_from(directory, attention_backend=attention)
    assert (name_of_kernels(model.module) is None) == (attention == "sdpa")
    expected = {name: reference_generate(directory, prompt, MAX_TOKENS) for name, prompt in PROMPTS.items()}
    assert {name: run(make_engine(model), {name: prompt})[name] for name, prompt in PROMPTS.items()} == expected
    assert run(make_engine(model, tokens=16), PROMPTS) == expected
    assert len({token for tokens in expected.values() for token in tokens}) > 10


def test_experts_keep_their_4_bits(load_from, directory):
    model = load_from(directory)
    experts = model.module.get_submodule(EXPERTS)
    stored = load_file(directory / "model.safetensors")
    assert isinstance(experts, PackedExperts)
    names = [f"{EXPERTS}.down_proj_{part}" for part in ("blocks", "scales")]
    assert torch.equal(experts.down_proj, packed(*(stored[name] for name in names)))
    assert (model.load_report.path, model.quantization) == ("fast", "mxfp4")
    assert describe_path(model, "native").startswith("transformers mxfp4 multiplied by ")
    in_torch = load_from(directory, model_impl="transformers")
    assert describe_path(in_torch, "native").startswith("transformers mxfp4 made plain in each pass")
    plain = sum(np.prod(part.shape) for part in (experts.gate_up_proj, experts.down_proj)) // 17 * 32
    assert model.num_parameters > 2 * plain


def test_any_piece_of_a_map_is_that_piece_of_the_whole(load_from, directory):
    model = load_from(directory)
    name = f"{EXPERTS}.gate_up_proj"
    whole = dict(iter_tensors(model.module))[name]
    slot = Slot(name, 0, tuple(whole.shape), torch.uint8)
    with model.weights._contents.source.open() as read:
        for start, end in ((0, 1), (16, 18), (5, 400), (whole.numel() - 3, whole.numel())):
            target = torch.zeros(end - start, dtype=torch.uint8)
            read(slot, start, end, target)
            assert torch.equal(target, whole.flatten()[start:end])


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("make_device", [FakeDevice, functools.partial(CpuDevice, Host())], ids=["fake", "cpu"])
def test_a_sleep_brings_the_same_experts_back(load_from, directory, make_device, level):
    model = load_from(directory, make_device())
    before = tensors_of(model)
    model.weights.save(level)
    model.weights.drop()
    model.weights.reserve()
    model.weights.restore()
    model.weights.arrive()
    model.weights.settle()
    model.weights.check_integrity()
    after = tensors_of(model)
    assert not [name for name in before if not torch.equal(before[name], after[name])]


def test_what_was_saved_is_what_is_loaded(load_from, directory, tmp_path):
    first = load_from(directory)
    save_sharded_state(first.weights, directory, tmp_path / "saved")
    second = load_from(tmp_path / "saved", load_format="sharded_state")
    before, after = tensors_of(first), tensors_of(second)
    assert before.keys() == after.keys()
    assert not [name for name in before if not torch.equal(before[name], after[name])]


def test_each_stage_reads_its_layers(load_from, directory):
    whole = tensors_of(load_from(directory))
    stages = [tensors_of(load_from(directory, layout=Layout(pipeline=2, rank=rank))) for rank in range(2)]
    for rank, stage in enumerate(stages):
        name = f"model.layers.{rank}.mlp.experts.down_proj"
        assert torch.equal(stage[name], whole[name])
        assert f"model.layers.{1 - rank}.mlp.experts.down_proj" not in stage


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dtype": "float16"}, "dtype is float16, and weights in mxfp4 are read in bfloat16 or float32"),
        ({"quantization": "int8"}, r"quantization is int8, which model\.layers\.0\.mlp\.router\.weight of a GptOssTop"),
        ({"layout": Layout(tensor=2)}, "tensor_parallel_size is 2; GptOssForCausalLM has no plan"),
    ],
    ids=str,
)
def test_what_is_not_combined_is_refused_by_name(load_from, directory, settings, words):
    with pytest.raises(InvalidSettings, match=words):
        load_from(directory, **settings)


@pytest.mark.parametrize(
    ("part", "tensor", "words"),
    [
        ("down_proj_scales", None, rf"{EXPERTS}\.down_proj_scales is not in the files; config\.json says mxfp4"),
        ("down_proj_blocks", torch.zeros(4, 64, 3, 15, dtype=torch.uint8), r"is U8 \[4, 64, 3, 15\], and config\.json"),
        ("down_proj_scales", torch.zeros(4, 64, 3), r"is F32 \[4, 64, 3\], and config\.json asks for U8 \[4, 64, 3\]"),
        (
            "down_proj_scales",
            torch.full((4, 64, 3), 255, dtype=torch.uint8),
            r"down_proj_scales holds 255, and weights",
        ),
        ("down_proj_bias", torch.zeros(4, 63), r"down_proj_bias.*\[4, 63\]"),
        ("down_proj_bias", None, rf"{EXPERTS}\.down_proj_bias is not in the files, or of a type that is no float"),
        ("odd_blocks", torch.zeros(1, dtype=torch.uint8), r"tensor \S+odd_blocks, U8 \[1\], has no place"),
    ],
    ids=str,
)
def test_tensors_that_contradict_are_refused_by_name(load_from, tmp_path, part, tensor, words):
    file = write_packed(tmp_path) / "model.safetensors"
    tensors = load_file(file)
    tensors.pop(f"{EXPERTS}.{part}", None)
    save_file({**tensors, **({} if tensor is None else {f"{EXPERTS}.{part}": tensor})}, file)
    with pytest.raises(ModelInvalid, match=words):
        load_from(tmp_path)


def test_inputs_that_are_no_whole_blocks_are_refused(load_from, tmp_path):
    write_packed(tmp_path, intermediate_size=100)
    with pytest.raises(ModelInvalid, match=r"down_proj has 100 inputs, which is no multiple of 32, as mxfp4 needs"):
        load_from(tmp_path)


def test_other_models_are_refused(load_from, tmp_path):
    write_tiny_model(tmp_path, "mixtral", quantization_config=SAID)
    with pytest.raises(ModelInvalid, match="is read as gpt-oss's experts have it, and MixtralForCausalLM has none"):
        load_from(tmp_path)
