"""The tokens of transformers' own greedy generation, in float32, from tiny models of many architectures."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.results import AtLeast, Row
from dormouse_worker.executor.testing import start
from dormouse_worker.model.testing import reference_generate, write_tiny_model
from tests.gpu.answers import answer, tokens_of
from tests.gpu.device_kit import Kit

# Between them: windows, soft-caps, sinks, learned positions, one key head for all, experts, keys wider than values.
ARCHITECTURES = (
    "llama", "qwen3", "mistral", "gemma2", "gemma3_text", "phi3", "gpt2", "gpt_bigcode", "gpt_oss", "deepseek_v3",
)  # fmt: skip
FEW = ("llama", "gpt_oss")
COMPILED = "qwen3"
COMPILE_SIZES = (1, 2, 3, 4)
WIDER = {"hidden_size": 64, "head_dim": 16}  # kernels begin at heads of 16
HAS_ITS_OWN_SIZES = ("gpt2", "gpt_bigcode", "deepseek_v3")
BLOCK_SIZE, NUM_TOKENS = 16, 10
PROMPTS = [[(i * i * 7 + i * n + 3) % 250 for i in range(length)] for n, length in enumerate((1, 5, 17, 30))]


def run(kit: Kit, architectures: Sequence[str] = ()) -> list[Row]:
    """Compare every architecture, alone on the CPU by transformers and together on the device by a worker.

    On a GPU one of them a second time, with layers that torch compiled.
    """
    names = architectures or (ARCHITECTURES if kit.is_gpu else FEW)
    equal = {name: _count_equal(kit, name) for name in names}
    if COMPILED in names and kit.is_gpu:
        equal[f"{COMPILED} compiled"] = _count_equal(kit, COMPILED, COMPILE_SIZES)
    return [
        Row(f"parity {name}: answers equal", count, "prompts", goal=AtLeast(len(PROMPTS)))
        for name, count in equal.items()
    ]


def _count_equal(kit: Kit, architecture: str, compile_sizes: tuple[int, ...] = ()) -> int:
    overrides = {} if architecture in HAS_ITS_OWN_SIZES else WIDER
    with tempfile.TemporaryDirectory() as folder:
        directory = write_tiny_model(Path(folder), architecture, **overrides)
        expected = [reference_generate(directory, prompt, NUM_TOKENS) for prompt in PROMPTS]
        worker = kit.make_worker(
            directory,
            dtype="float32",
            block_size=BLOCK_SIZE,
            max_num_seqs=len(PROMPTS),
            max_num_batched_tokens=128,
            kv_cache_memory_bytes=4 << 20,
            compile_sizes=compile_sizes,
        )
        try:
            start(worker)
            steps = answer(worker, PROMPTS, NUM_TOKENS, block_size=BLOCK_SIZE, num_logprobs=0)
        finally:
            worker.shutdown()
    return sum(tokens_of(steps, number) == tokens for number, tokens in enumerate(expected))
