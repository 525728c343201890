"""Ranks that share a model of fewer bits have the numbers of one rank, and say what it says, also after a sleep."""

from __future__ import annotations

from statistics import median

import pytest
import torch
from msgspec import structs

from dormouse_worker.common.commands import TAGS
from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.host import Host
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.adapters import AdapterSlots
from dormouse_worker.engine.testing import make_add
from dormouse_worker.executor.testing_groups import FakeGroupExecutor
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.loader import load
from dormouse_worker.model.quantized.modules import QuantizedLinear
from dormouse_worker.model.testing import write_tiny_model
from dormouse_worker.model.weights.sharded import save_sharded_state
from dormouse_worker.model.weights.skeleton import iter_tensors
from tests.peft_kit import make_adapter
from tests.worker.engine.engine_kit import finish
from tests.worker.executor.group_kit import PROMPTS, make_engine, run
from tests.worker.model.quantized.checkpoints import awq, compressed, gptq, packed, quantize_model

SIZES = {  # half of a row of queries is an odd number of groups of 64, half of what the gate lets through a whole chunk
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "num_hidden_layers": 3,
}
SHAPES = [(2, 1), (1, 2), (2, 2)]
METHODS = ("int8", "int4")
IN_TORCH = {"attention_backend": "sdpa"}  # who does not round rows, so tokens are equal
STORED = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 64}, lambda weight: gptq(weight, size=64)),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32}, lambda weight: awq(weight, size=32)),
    "an order": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True},
        lambda weight: gptq(weight, size=32, act_order=True),
    ),
    "outputs": (compressed("int", 4, "pack-quantized"), lambda weight: packed(weight, size=-1)),
}
TOKENS = range(5, 250, 8)  # prompts of one token each
CLOSE = 1e-4  # most log-probabilities; 1e-2 where each rank rounds its part of a row by itself


@pytest.fixture
def group_of():
    """Return a function (directory, (T, P), **settings) → group, which is shut down in the end."""
    made = []

    def make(directory, shape, **settings):
        made.append(FakeGroupExecutor(directory, *shape, **settings))
        return made[-1]

    yield make
    for group in made:
        group.shutdown()


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Return a model of plain weights."""
    return write_tiny_model(tmp_path_factory.mktemp("plain") / "model", "qwen2", **SIZES)


@pytest.fixture(scope="module")
def checkpoint_of(tmp_path_factory):
    """Return a function (name in STORED) → directory of the model in that kind."""

    def write(name):
        directory = write_tiny_model(tmp_path_factory.mktemp("stored") / "model", "qwen2", **SIZES)
        quantize_model(directory, name, {name: STORED[name]})
        return directory

    return write


def scores_of(group):
    """Return the largest log-probability behind each of many tokens."""
    engine = make_engine(group, tokens=16)
    for token in TOKENS:
        assert engine.add(make_add(str(token), [token], max_tokens=1, logprobs=1)) is None
    outputs = [output for step in iter(engine.step, None) for output in step.outputs]
    told = {output.request_id: row.top_logprobs[0] for output in outputs for row in output.logprobs or []}
    return [told[str(token)] for token in TOKENS]


@pytest.mark.parametrize(
    ("method", "settings", "shape"),
    [
        ("int8", IN_TORCH, (2, 1)),
        ("int4", IN_TORCH, (2, 2)),
        ("int8", {"model_impl": "transformers"}, (2, 2)),
        ("int4", {"model_impl": "transformers"}, (2, 1)),
    ],
    ids=str,
)
def test_in_torch_the_tokens_are_those_of_one_rank(group_of, directory, method, settings, shape):
    said = [
        run(make_engine(group_of(directory, each, quantization=method, **settings)), PROMPTS)
        for each in ((1, 1), shape)
    ]
    assert said[0] == said[1]


@pytest.mark.usefixtures("loaded_kernels")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_kernels_round_a_row_by_the_largest_number_of_all_ranks(group_of, directory, method, shape):
    alone, group = (group_of(directory, each, quantization=method) for each in ((1, 1), shape))
    assert all(f" {method}" in worker.get_model_info().compute_path for worker in group.workers)
    differences = [abs(one - other) for one, other in zip(scores_of(group), scores_of(alone), strict=True)]
    # sums in another order may round a number otherwise, and then that answer differs by more
    assert median(differences) < CLOSE if shape[0] > 1 else not any(differences)


@pytest.mark.parametrize("method", METHODS)
def test_after_every_sleep_ranks_have_the_same_numbers(group_of, directory, method):
    group = group_of(directory, (2, 1), quantization=method)
    group.initialize_cache(8, 0)
    before = [_numbers(worker) for worker in group.workers]
    for level in (1, 2):
        group.sleep(level, TAGS)
        group.wake_up(TAGS)
        for worker, numbers in zip(group.workers, before, strict=True):
            assert not _differences(numbers, _numbers(worker))


@pytest.mark.parametrize("method", METHODS)
def test_ranks_have_the_numbers_of_one_rank(group_of, directory, method):
    whole = group_of(directory, (1, 1), quantization=method).workers[0]._loaded().module
    ranks = [worker._loaded().module for worker in group_of(directory, (2, 1), quantization=method).workers]
    for name, part in whole.named_modules():
        if not isinstance(part, QuantizedLinear):
            continue
        parts = [rank.get_submodule(name) for rank in ranks]
        is_divided = parts[0].in_features < part.in_features
        plain = [each.format.dequantize(each.weight, each.weight_scale, each.in_features) for each in parts]
        expected = part.format.dequantize(part.weight, part.weight_scale, part.in_features)
        assert torch.equal(torch.cat(plain, 1 if is_divided else 0), expected)
        assert is_divided is name.endswith(("o_proj", "down_proj"))


@pytest.mark.parametrize(
    ("kind", "shape"), [("gptq", (2, 2)), ("awq", (2, 1)), ("an order", (2, 1)), ("outputs", (2, 2))], ids=str
)
def test_checkpoints_of_fewer_bits_say_what_they_say_on_one_rank(group_of, checkpoint_of, kind, shape):
    directory, said, kept = checkpoint_of(kind), [], []
    for each in ((1, 1), shape):
        group = group_of(directory, each)
        said.append(run(make_engine(group), PROMPTS))
        kept.append({name for worker in group.workers for name in _kept(worker)})
    assert said[0] == said[1]
    torn = {name for name in kept[0] if name.endswith("o_proj")}  # half of its rows is a chunk and a half
    assert kept[1] == kept[0] - torn


def test_an_adapter_says_what_it_says_on_one_rank(group_of, directory, tmp_path):
    adapter, said = make_adapter(tmp_path / "adapter", directory, rank=4), []
    sizes = {"enable_lora": True, "max_loras": 1, "max_lora_rank": 4, "max_cpu_loras": 1}
    for shape in ((1, 1), (2, 2)):
        group, slots = group_of(directory, shape, quantization="int4", **IN_TORCH, **sizes), AdapterSlots(1)
        info = group.add_lora(adapter)
        slots.add(info)
        engine = make_engine(group, slots=slots)
        said.append(run(engine, PROMPTS))
        for name, prompt in PROMPTS.items():
            message = make_add(f"{name} adapted", prompt, max_tokens=8)
            assert engine.add(structs.replace(message, adapter=info.digest)) is None
        said[-1] |= finish(engine, {f"{name} adapted": [] for name in PROMPTS})
    assert said[0] == said[1]
    assert said[0]["3 adapted"] != said[0]["3"][:8], "else equality would prove little"


@pytest.mark.parametrize("settings", [{"quantization": "int8"}, {"quantization": "int4"}, {}], ids=str)
def test_what_ranks_saved_is_what_they_load(group_of, directory, checkpoint_of, tmp_path, settings):
    source = directory if settings else checkpoint_of("gptq")
    group = group_of(source, (2, 2), **settings)
    stores = [worker._loaded().weights for worker in group.workers]
    group.group.run(
        lambda rank: save_sharded_state(stores[rank], source, tmp_path / "saved", communicator=group.group.ranks[rank])
    )
    again = group_of(tmp_path / "saved", (2, 2), load_format="sharded_state", **settings)
    for first, second in zip(group.workers, again.workers, strict=True):
        assert not _differences(_numbers(first), _numbers(second))


@pytest.mark.parametrize("method", METHODS)
def test_what_ranks_would_divide_within_a_block_is_refused_by_name(tmp_path, method):
    directory = write_tiny_model(tmp_path, "llama", hidden_size=64, num_attention_heads=4, head_dim=16)
    settings = EngineSettings(model=str(directory), block_size=4, quantization=method)
    with pytest.raises(
        InvalidSettings,
        match=rf"^tensor_parallel_size is 2; \S+o_proj has 64 inputs of {method}, 32 for each rank, and 64 of them lie",
    ):
        load(settings, CpuDevice(Host()), Layout(tensor=2))


def _numbers(worker):
    return {name: tensor.clone() for name, tensor in iter_tensors(worker._loaded().module)}


def _differences(tensors, others):
    assert tensors.keys() == others.keys()
    return [name for name in tensors if not torch.equal(tensors[name], others[name])]


def _kept(worker):
    return {name for name, part in worker._loaded().module.named_modules() if isinstance(part, QuantizedLinear)}
