"""What kernels add for adapters is torch's sum, in every variant; a row's bits depend on nobody else's adapter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.attention.native import NativeBackend
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.forward.choose import ForwardPaths
from dormouse_worker.model.forward.in_torch import TorchForward
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.model.lean.fit import build_native
from dormouse_worker.model.loader import load
from dormouse_worker.model.quantized.formats import FORMATS
from dormouse_worker.model.quantized.modules import computed_dtype, name_of_format
from dormouse_worker.model.testing import write_tiny_model
from dormouse_worker.model.testing_adapters import write_adapter
from tests.worker.model.quantized.checkpoints import awq, gptq, quantize_model
from tests.worker.native.sequences import BLOCK_SIZE, compute, metadata_of_several

SHAPES = {
    "tiny": {},
    "odd sizes": {"hidden_size": 36, "intermediate_size": 50, "head_dim": 6},
    "whole groups": {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 32},
    "as a real one": {"hidden_size": 128, "intermediate_size": 352, "num_attention_heads": 8, "head_dim": 32},
}
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
COUNTS = (1, 17, 1, 9, 5)  # tokens of the sequences
SLOTS = (0, 1, -1, 2, -1)  # of their adapters
RANKS = (1, 6, 16)
KEPT = {  # checkpoints whose 4 bits are kept
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 128}, lambda weight: gptq(weight, size=128)),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32}, lambda weight: awq(weight, size=32)),
}


DTYPES = ("float32", "bfloat16")
CASES = [
    *((name, dtype, "none") for name in ("tiny", "odd sizes", "as a real one") for dtype in DTYPES),
    *(("as a real one", dtype, bits) for dtype in DTYPES for bits in ("int8", "int4")),
    ("odd sizes", "float32", "int8"),
    *(("whole groups", "bfloat16", bits) for bits in KEPT),
]


@pytest.fixture(scope="module", params=CASES, ids=str)
def model(request, tmp_path_factory):
    """Return a model with an adapter in each of three slots."""
    name, dtype, bits = request.param
    folder = tmp_path_factory.mktemp("lora")
    base = write_tiny_model(folder / "base", "qwen2", **SHAPES[name])
    paths = [write_adapter(folder / str(rank), base, rank=rank, targets=TARGETS, seed=rank) for rank in RANKS]
    if bits in KEPT:
        quantize_model(base, bits, KEPT)
    settings = EngineSettings(
        model=str(base),
        block_size=BLOCK_SIZE,
        dtype=dtype,
        quantization="none" if bits in KEPT else bits,
        enable_lora=True,
        max_loras=3,
        max_lora_rank=16,
    )
    loaded = load(settings, CpuDevice(Host()))
    assert (name_of_format(loaded.module) is None) is (bits == "none")
    for slot, path in enumerate(paths):
        loaded.adapters.put(slot, loaded.adapters.add(path).digest)
    yield loaded
    loaded.close()


def logits_of(model, kernels, *, counts=COUNTS, slots=SLOTS, wanted=None, first=0):
    """Return the logits of these rows, of all if None, of a pass over the first tokens of several sequences."""
    backend = SdpaBackend() if kernels is None else NativeBackend(kernels=kernels)
    native = (
        model.native if kernels is None else build_native(model.lean, model.cache_spec.layers, kernels, model.adapters)
    )
    cache = KVCache(model.cache_spec, 60, torch.device("cpu"))
    paths = ForwardPaths(TorchForward(replace(model, native=native), cache), backend)
    starts = np.cumsum([0, *COUNTS[:-1]])[first : first + len(counts)]
    ids = np.concatenate([np.arange(start, start + count) for start, count in zip(starts, counts, strict=True)])
    token_ids = torch.from_numpy((ids * ids * 7 + 3 * ids + 5) % 250)
    rows = torch.arange(len(ids)) if wanted is None else torch.tensor(wanted)
    lora_slots = None if slots is None else np.repeat(np.array(slots), counts)
    return compute(paths, [metadata_of_several(list(counts))], token_ids, rows, lora_slots).float()


def error_of(found, expected):
    """Return how large the difference is beside what is expected."""
    return (found - expected).norm() / expected.norm()


def test_every_variant_adds_what_torch_adds(model, kernels):
    found, expected = logits_of(model, kernels), logits_of(model, None)
    if name_of_format(model.module) in FORMATS:  # kernels round rows for whole numbers, with adapters or without
        plain, plain_expected = logits_of(model, kernels, slots=None), logits_of(model, None, slots=None)
        assert error_of(found, expected) < 1.5 * error_of(plain, plain_expected)
    else:
        tolerance = 2e-5 if computed_dtype(model.module) is torch.float32 else 0.1
        assert (found - expected).abs().max() <= tolerance * expected.abs().max()
    assert (found - logits_of(model, kernels, slots=None)).abs().max() > 0.05 * expected.abs().max()


def test_rows_without_an_adapter_have_the_bits_that_they_have_alone(model, kernels):
    mixed, plain = logits_of(model, kernels), logits_of(model, kernels, slots=None)
    is_base = np.repeat(np.array(SLOTS), COUNTS) < 0
    assert torch.equal(mixed[is_base], plain[is_base])
    assert not torch.equal(mixed, plain)


def test_rows_with_one_have_the_bits_that_they_have_alone(model, kernels):
    mixed, end = logits_of(model, kernels), 0
    for first, count in enumerate(COUNTS):
        alone = logits_of(model, kernels, counts=(count,), slots=SLOTS[first : first + 1], first=first)
        assert torch.equal(alone, mixed[end : end + count]), first
        end += count


def test_rows_that_are_wanted_keep_their_adapters(model, kernels):
    wanted = [0, 17, 18, 27, 32]
    assert torch.equal(logits_of(model, kernels, wanted=wanted), logits_of(model, kernels)[wanted])


def test_torch_leaves_rows_without_an_adapter_as_they_are(model):
    mixed, plain = logits_of(model, None), logits_of(model, None, slots=None)
    is_base = np.repeat(np.array(SLOTS), COUNTS) < 0
    assert torch.equal(mixed[is_base], plain[is_base])
