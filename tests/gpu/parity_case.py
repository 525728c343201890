"""The tokens of transformers' own greedy generation, in float32, from tiny models of many architectures."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.results import AtLeast, Row
from dormouse_worker.executor.testing import start
from dormouse_worker.executor.worker.rank_worker import RankWorker
from dormouse_worker.model.testing import reference_generate, write_tiny_model
from tests.gpu.answers import answer, tokens_of
from tests.gpu.device_kit import Kit, find_kit
from tests.gpu.shares import num_processes, share_out

# Between them: windows, soft-caps, sinks, learned positions, one key head for all, experts, keys wider than values.
ARCHITECTURES = (
    "llama", "qwen3", "mistral", "gemma2", "gemma3_text", "phi3", "gpt2", "gpt_bigcode", "gpt_oss", "deepseek_v3",
)  # fmt: skip
FEW = ("llama", "gpt_oss")
COMPILED = "qwen3"
RECORDED = ("gpt_oss", "qwen3_moe")
COMPILE_SIZES = (1, 2, 3, 4)
WIDER = {"hidden_size": 64, "head_dim": 16}  # kernels begin at heads of 16
HAS_ITS_OWN_SIZES = ("gpt2", "gpt_bigcode", "deepseek_v3")
BLOCK_SIZE, NUM_TOKENS = 16, 10
PROMPTS = [[(i * i * 7 + i * n + 3) % 250 for i in range(length)] for n, length in enumerate((1, 5, 17, 30))]


def run(kit: Kit, architectures: Sequence[str] = ()) -> list[Row]:
    """Compare every architecture, alone on the CPU by transformers and together on the device by a worker.

    On a GPU one of them a second time, with layers that torch compiled, and those with experts in bfloat16, in which
    their decode steps must be graphs.
    """
    equal = _share_out() if kit.is_gpu else {name: _count_equal(kit, name) for name in architectures or FEW}
    recorded = [_recorded_row(kit, name) for name in RECORDED] if kit.is_gpu else []
    return [
        Row(f"parity {name}: answers equal", count, "prompts", goal=AtLeast(len(PROMPTS)))
        for name, count in equal.items()
    ] + recorded


def be_share(share: str) -> int:
    """Be one of the processes: compare the architectures that are named; say how many answers of each are equal."""
    equal = {}
    for name in share.split(","):
        architecture, _, compiled = name.partition(" ")
        equal[name] = _count_equal(find_kit(), architecture, COMPILE_SIZES if compiled else ())
    print(json.dumps(equal), flush=True)
    return 0


def _share_out() -> dict[str, int]:
    names = [f"{COMPILED} compiled", *ARCHITECTURES]
    count = num_processes()
    shares = [",".join(names[number::count]) for number in range(count)]
    return {name: equal for share in share_out("parity-share", shares) for name, equal in share.items()}


def _recorded_row(kit: Kit, architecture: str) -> Row:
    with tempfile.TemporaryDirectory() as folder, _serving(kit, Path(folder), architecture, "bfloat16") as worker:
        count = 0 if worker.recording is None else worker.recording.num_graphs
    return Row(f"parity {architecture} in bfloat16: graphs of decode steps", count, "", goal=AtLeast(1))


def _count_equal(kit: Kit, architecture: str, compile_sizes: tuple[int, ...] = ()) -> int:
    with tempfile.TemporaryDirectory() as folder:
        with _serving(kit, Path(folder), architecture, "float32", compile_sizes) as worker:
            steps = answer(worker, PROMPTS, NUM_TOKENS, block_size=BLOCK_SIZE, num_logprobs=0)
        expected = [reference_generate(Path(folder), prompt, NUM_TOKENS) for prompt in PROMPTS]
    return sum(tokens_of(steps, number) == tokens for number, tokens in enumerate(expected))


@contextmanager
def _serving(
    kit: Kit, folder: Path, architecture: str, dtype: str, compile_sizes: tuple[int, ...] = ()
) -> Iterator[RankWorker]:
    overrides = {} if architecture in HAS_ITS_OWN_SIZES else WIDER
    worker = kit.make_worker(
        write_tiny_model(folder, architecture, **overrides),
        dtype=dtype,
        block_size=BLOCK_SIZE,
        max_num_seqs=len(PROMPTS),
        max_num_batched_tokens=128,
        kv_cache_memory_bytes=4 << 20,
        compile_sizes=compile_sizes,
    )
    try:
        start(worker)
        yield worker
    finally:
        worker.shutdown()
