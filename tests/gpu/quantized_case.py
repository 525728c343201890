"""Weights of fewer bits, rounded by us or as other tools store them, and a cache of 8 bits: what the CPU says.

GGUF files are read in host memory into weights that are of these kinds on the device, or plain.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench.results import AtLeast, Row
from dormouse_worker.model.cache_rows import MOST
from dormouse_worker.model.testing import write_tiny_model
from tests.gpu.asked_rank import ON_CPU, asked_rank, count_equal, wish
from tests.gpu.device_kit import Kit
from tests.gpu.parity_case import PROMPTS
from tests.worker.model.quantized.checkpoints import KINDS, awq, compressed, gptq, packed, quantize_model

SIZES: Mapping[str, int] = MappingProxyType(  # whole chunks of 128 inputs, that numbers of 4 bits may be kept
    {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    }
)
KEPT = {  # as numbers of 4 bits; the others become plain weights while they are read
    "gptq, kept": ({"quant_method": "gptq", "bits": 4, "group_size": 128}, lambda weight: gptq(weight, size=128)),
    "awq, kept": ({"quant_method": "awq", "bits": 4, "group_size": 32}, lambda weight: awq(weight, size=32)),
    "w4a16, kept": (
        compressed("int", 4, "pack-quantized", strategy="group", group_size=64, symmetric=False),
        lambda weight: packed(weight, size=64, symmetric=False),
    ),
}
STORED = ("gptq 8 bits, ordered", "w8a8", "fp8 of blocks")
ONLINE = ("int8", "int4")
FEW = ("int4", "awq, kept")
NUM_TOKENS = 10


def run(kit: Kit) -> list[Row]:
    """Compare each kind, also after a sleep: at level 2 weights are read again, and rounded anew."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in (*ONLINE, *KEPT, *STORED) if kit.is_gpu else FEW:
            directory = write_tiny_model(Path(folder, name), "qwen2", **SIZES)
            if name not in ONLINE:
                quantize_model(directory, name, KEPT | KINDS)
            rows += _compare(kit, directory, name, {"quantization": name} if name in ONLINE else {})
        plain = write_tiny_model(Path(folder, "plain"), "qwen2", **SIZES)
        for stored in MOST:
            rows += _compare(kit, plain, f"cache of {stored}", {"kv_cache_dtype": stored})
    return rows


def _compare(kit: Kit, directory: Path, name: str, settings: Mapping[str, Any]) -> Iterator[Row]:
    asked = [wish(prompt, max_tokens=NUM_TOKENS, logprobs=1) for prompt in PROMPTS]
    with asked_rank(directory, ON_CPU, **settings) as rank:
        truth = rank.ask(*asked)
    with asked_rank(directory, kit.rank_settings, **settings) as rank:
        equal = count_equal(rank.ask(*asked), truth)
        rank.sleep_and_wake(2)
        equal += count_equal(rank.ask(*asked), truth)
        num_graphs = rank.num_graphs
    yield Row(f"quantized, {name}: answers of the CPU", equal, "", goal=AtLeast(2 * len(asked)))
    yield Row(f"quantized, {name}: decode steps recorded", num_graphs, "", goal=AtLeast(1))
