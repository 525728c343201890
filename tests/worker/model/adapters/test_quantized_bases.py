"""Adapters beside weights of fewer bits: the tokens of peft over a base of what these weights stand for."""

from __future__ import annotations

import functools

import pytest
from safetensors.torch import load_file, save_file

from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.attention.native import NativeBackend
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.loader import load
from dormouse_worker.model.quantized.modules import QuantizedEmbedding, QuantizedLinear
from dormouse_worker.model.testing import write_tiny_model
from tests.peft_kit import greedy_tokens, make_adapter
from tests.worker.model.adapters.test_adapter_tokens import Case, run
from tests.worker.model.quantized.checkpoints import awq, gptq, quantize_model
from tests.worker.model.test_parity import BLOCK_SIZE, MAX_TOKENS, PROMPTS

RANKS = (1, 8)
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 32}
KEPT = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 128}, lambda weight: gptq(weight, size=128)),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32}, lambda weight: awq(weight, size=32)),
}
# whoever multiplies rows as they are says what peft says; our kernels round them for int8 and int4
PATHS = [
    *(("qwen2", bits, path) for bits in ("int8", "int4") for path in ("lean", "transformers")),
    ("gemma3_text", "int8", "transformers"),
    *(("qwen2", bits, "native") for bits in KEPT),
]


@pytest.fixture(scope="module")
def case_of(tmp_path_factory):
    """Return a function (architecture, bits, path) → Case."""

    @functools.cache
    def case(architecture, bits, path):
        folder = tmp_path_factory.mktemp("case")
        base = write_tiny_model(folder / "base", architecture, **(SIZES if architecture == "qwen2" else {}))
        plain = write_tiny_model(folder / "plain", architecture, **(SIZES if architecture == "qwen2" else {}))
        if bits in KEPT:
            save_file(quantize_model(base, bits, KEPT), plain / "model.safetensors", metadata={"format": "pt"})
        adapters = {str(rank): make_adapter(folder / str(rank), plain, rank=rank) for rank in RANKS}
        settings = EngineSettings(
            model=str(base),
            block_size=BLOCK_SIZE,
            dtype="float32",
            quantization="none" if bits in KEPT else bits,
            model_impl="transformers" if path == "transformers" else "lean",
            enable_lora=True,
            max_loras=len(RANKS),
            max_lora_rank=max(RANKS),
        )
        model = load(settings, CpuDevice(Host()))
        if bits not in KEPT:
            write_what_is_meant(model.module, plain / "model.safetensors")
        expected = {
            (name, prompt): greedy_tokens(plain, adapters.get(name), ids, MAX_TOKENS, ignore_eos=True)
            for name in ("", *adapters)
            for prompt, ids in PROMPTS.items()
        }
        said = {str([expected[name, prompt] for prompt in PROMPTS]) for name in ("", *adapters)}
        assert len(said) == 1 + len(RANKS), "else equality would prove nothing"
        digests = {name: model.adapters.add(path_of).digest for name, path_of in adapters.items()}
        backend = NativeBackend() if path == "native" else SdpaBackend()
        return Case(model, backend, {"": "", **digests}, expected)

    return case


def write_what_is_meant(module, file):
    """Put the plain weights for which those of fewer bits stand into a model's file."""
    tensors = load_file(file)
    for name, part in module.named_modules():
        if isinstance(part, QuantizedLinear | QuantizedEmbedding):
            columns = part.in_features if isinstance(part, QuantizedLinear) else part.embedding_dim
            tensors[f"{name}.weight"] = part.format.dequantize(part.weight, part.weight_scale, columns)
    known = load_file(file).keys()
    save_file(
        {name: tensor.contiguous().clone() for name, tensor in tensors.items() if name in known}, file, {"format": "pt"}
    )


@pytest.mark.parametrize(("architecture", "bits", "path"), PATHS)
def test_a_batch_that_mixes_adapters_says_what_peft_says(case_of, architecture, bits, path):
    case = case_of(architecture, bits, path)
    assert isinstance(case.model.module.get_submodule("model.layers.0.mlp.down_proj"), QuantizedLinear)
    assert run(case, seqs=6) == case.expected


@pytest.mark.parametrize(("architecture", "bits", "path"), [PATHS[0], PATHS[-1]])
@pytest.mark.parametrize("settings", [{"tokens": 7}, {"num_blocks": 12, "host_blocks": 12}], ids=str)
def test_chunks_and_preemption_change_no_token(case_of, architecture, bits, path, settings):
    case = case_of(architecture, bits, path)
    assert run(case, **settings) == case.expected


@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_our_kernels_say_the_same_however_it_is_batched(tmp_path, bits):
    base = write_tiny_model(tmp_path / "base", "qwen2", **SIZES)
    paths = {str(rank): make_adapter(tmp_path / str(rank), base, rank=rank) for rank in RANKS}
    settings = EngineSettings(
        model=str(base), block_size=BLOCK_SIZE, quantization=bits, enable_lora=True, max_loras=2, max_lora_rank=8
    )
    model = load(settings, CpuDevice(Host()))
    digests = {"": "", **{name: model.adapters.add(path).digest for name, path in paths.items()}}
    asked = {(name, prompt): None for name in digests for prompt in PROMPTS}
    case = Case(model, NativeBackend(), digests, asked)
    together = run(case, seqs=6)
    assert len({str([together[name, prompt] for prompt in PROMPTS]) for name in digests}) == 1 + len(RANKS)
    assert run(case, seqs=1) == run(case, tokens=7) == run(case, num_blocks=12, host_blocks=12) == together
    for level in (1, 2):
        model.adapters.save(level)
        model.adapters.drop()
        model.adapters.reserve()
        model.adapters.restore()
        model.adapters.settle()
        assert run(case, seqs=6) == together
    model.close()
