"""Whole checkpoints of other tools: read as plain weights, rounded again if asked, cut for ranks, refused by name."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.common.host import Host
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.device.testing import FakeDevice
from dormouse_worker.model.loader import load
from dormouse_worker.model.quantized.stored_kinds import Gptq
from dormouse_worker.model.quantized.stored_plan import plan_stored
from dormouse_worker.model.testing import write_tiny_model
from dormouse_worker.model.weights.reader import CheckpointSource
from dormouse_worker.model.weights.skeleton import Skeleton, iter_tensors
from tests.worker.model.quantized.checkpoints import KINDS, quantize_model
from tests.worker.model.quantized.rounded import quantize_rows

SIZES = {"hidden_size": 48, "intermediate_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8}
Q_PROJ = "model.layers.0.self_attn.q_proj"


@pytest.fixture
def load_from():
    """Return a function (directory, device, settings) → loaded model, whose memory goes in the end."""
    models = []

    def load_one(directory, device=None, layout=None, **settings):
        fields = EngineSettings(model=str(directory), block_size=4, **{"dtype": "float32", **settings})
        models.append(load(fields, device or CpuDevice(Host()), layout))
        return models[-1]

    yield load_one
    for model in models:
        model.weights.close()


@pytest.fixture
def checkpoint(tmp_path):
    """Return a function kind → (directory, plain weights by name)."""
    return lambda kind: (tmp_path, quantize_model(write_tiny_model(tmp_path, "qwen2", **SIZES), kind))


def change(directory, edit):
    """Let a function change the tensors of a checkpoint."""
    file = directory / "model.safetensors"
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_is_the_one_that_was_written(load_from, checkpoint, kind):
    directory, plain = checkpoint(kind)
    model = load_from(directory)
    found = {name: tensor for name, tensor in iter_tensors(model.module) if name in plain}
    assert found.keys() >= {f"{Q_PROJ}.weight", "model.embed_tokens.weight", f"{Q_PROJ}.bias"}
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, plain[name], atol=1e-6, rtol=1e-6)
    assert model.load_report.path == "fast"


@pytest.mark.parametrize("level", [1, 2])
def test_a_sleep_brings_the_same_weights_back(load_from, checkpoint, level):
    model = load_from(checkpoint("gptq")[0], FakeDevice(), dtype="bfloat16")
    before = {name: tensor.clone() for name, tensor in iter_tensors(model.module)}
    model.weights.save(level)
    model.weights.drop()
    model.weights.reserve()
    model.weights.restore()
    model.weights.arrive()
    model.weights.settle()
    assert not [name for name, tensor in iter_tensors(model.module) if not torch.equal(tensor, before[name])]


@pytest.mark.parametrize("kind", ["awq", "fp8 of blocks"])
def test_they_may_be_rounded_to_8_bits_while_they_are_read(load_from, checkpoint, kind):
    directory, plain = checkpoint(kind)
    made = load_from(directory, quantization="int8").module.get_submodule(Q_PROJ)
    numbers, scales = quantize_rows(plain[f"{Q_PROJ}.weight"])
    assert (made.weight.int() - numbers.int()).abs().max() <= 1
    torch.testing.assert_close(made.weight_scale, scales)


def test_each_rank_reads_its_part(load_from, checkpoint):
    directory, plain = checkpoint("w4a16")
    models = [load_from(directory, layout=Layout(tensor=2, rank=rank)) for rank in range(2)]
    parts = [model.module.get_submodule(Q_PROJ).weight for model in models]
    torch.testing.assert_close(torch.cat(parts), plain[f"{Q_PROJ}.weight"])


def test_what_is_beside_the_weights_may_be_there(load_from, checkpoint):
    directory, _ = checkpoint("fp8")
    change(directory, lambda tensors: tensors.update({f"{Q_PROJ}.input_scale": torch.ones(1)}))
    load_from(directory)


@pytest.mark.parametrize(
    ("kind", "part", "tensor", "words"),
    [
        ("gptq", "scales", None, rf"{Q_PROJ}\.scales is not in the files, and neither is a plain {Q_PROJ}\.weight"),
        (
            "gptq",
            "qzeros",
            torch.zeros(3, 5, dtype=torch.int32),
            r"is I32 \[3, 5\], and config.json asks for I32 \[3, 6\]",
        ),
        (
            "w8a8",
            "weight_scale",
            torch.ones(7, 1),
            r"is F32 \[7, 1\], and config.json asks for F16 or BF16 or F32 \[\]",
        ),
        ("fp8", "weight", torch.ones(48, 48, dtype=torch.int8), r"is I8 \[48, 48\], and config.json asks for F8_E4M3"),
        ("awq", "odd", torch.ones(3), rf"tensor {Q_PROJ}\.odd, F32 \[3\], has no place in the Qwen2ForCausalLM"),
        ("w8a8", "weight_scale", torch.full((48, 1), float("nan")), r"q_proj\.weight holds nan at element 0"),
    ],
)
def test_tensors_that_contradict_are_refused_by_name(load_from, checkpoint, kind, part, tensor, words):
    directory, _ = checkpoint(kind)

    def edit(tensors):
        tensors.pop(f"{Q_PROJ}.{part}", None)
        if tensor is not None:
            tensors[f"{Q_PROJ}.{part}"] = tensor

    change(directory, edit)
    with pytest.raises(ModelInvalid, match=words):
        load_from(directory)


def test_a_group_that_is_not_there_is_refused_where_it_stands(load_from, checkpoint):
    directory, _ = checkpoint("gptq")
    change(directory, lambda tensors: tensors[f"{Q_PROJ}.g_idx"].fill_(9))
    with pytest.raises(ModelInvalid, match=rf"{Q_PROJ}\.qweight names group 9, and has groups 0 to 2; copy the files"):
        load_from(directory)


def test_groups_that_do_not_divide_are_refused(load_from, checkpoint):
    directory, _ = checkpoint("gptq")
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"]["group_size"] = 36
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ModelInvalid, match=r"q_proj has 48 inputs, which is no multiple of 36, as gptq of 4 bits needs"
    ):
        load_from(directory)


def test_plain_weights_that_are_said_to_be_quantized_are_refused(load_from, tmp_path):
    directory = write_tiny_model(tmp_path, quantization_config=KINDS["gptq"][0])
    with pytest.raises(
        ModelInvalid, match="quantization_config is gptq of 4 bits, and all weights of the files are plain"
    ):
        load_from(directory)


def test_experts_under_other_names_are_refused(load_from, tmp_path):
    directory = write_tiny_model(tmp_path, "mixtral", quantization_config=KINDS["gptq"][0])
    with pytest.raises(
        ModelInvalid, match=r"layers\.0\.mlp\.\S+ is not in the files, neither plain nor as gptq of 4 bits"
    ):
        load_from(directory)


def test_weights_that_transformers_changes_are_refused():
    written_to = Skeleton(nn.Linear(1, 1), {"weight": torch.zeros(1, 1)}, frozenset())
    with pytest.raises(ModelInvalid, match="gptq of 4 bits, and Linear needs weights that transformers converts"):
        plan_stored(written_to, Gptq(4, 16, 1), {}, lambda names: CheckpointSource(dict, names))
