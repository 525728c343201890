"""More requests than the cache has blocks for: preempted to host memory and back, or computed anew; the same tokens."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.results import AtLeast, Row
from dormouse_worker.common.ipc import StepOutputs
from dormouse_worker.model.testing import write_tiny_model
from tests.gpu.asked_rank import ON_CPU, asked_rank, count_equal, gather, wish
from tests.gpu.device_kit import Kit
from tests.gpu.parity_case import PROMPTS, WIDER

ARCHITECTURES, FEW = ("llama", "mistral"), ("mistral",)  # one of them has windows
MAX_MODEL_LEN = 64
FEW_BLOCKS = 5  # of 16 tokens; all prompts with their answers need eleven
NUM_TOKENS = 24
WAYS = {"swapped": 16, "computed anew": 0}  # blocks in host memory
RANDOM = {"temperature": 1.0, "seed": 4, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "top_p": 0.95}


def run(kit: Kit) -> list[Row]:
    """Compare crowded ranks with one on the CPU that is not; half of the requests are random."""
    asked = [wish(prompt, max_tokens=NUM_TOKENS, **how) for how in ({}, RANDOM) for prompt in PROMPTS]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for architecture in ARCHITECTURES if kit.is_gpu else FEW:
            directory = write_tiny_model(Path(folder, architecture), architecture, **WIDER)
            with asked_rank(directory, ON_CPU, max_model_len=MAX_MODEL_LEN) as rank:
                truth = rank.ask(*asked)
            for name, num_host_blocks in WAYS.items():
                blocks = FEW_BLOCKS, num_host_blocks
                with asked_rank(directory, kit.rank_settings, blocks, max_model_len=MAX_MODEL_LEN) as rank:
                    told = rank.run(*asked)
                what = f"swap, {architecture}, {name}"
                equal = count_equal(gather(told, len(asked)), truth)
                rows += [
                    Row(f"{what}: answers of the CPU", equal, "", goal=AtLeast(len(asked))),
                    Row(f"{what}: preemptions", _num_preemptions(told), "", goal=AtLeast(1)),
                ]
    return rows


def _num_preemptions(messages: list[StepOutputs]) -> int:
    return sum(message.preemptions for message in messages)
