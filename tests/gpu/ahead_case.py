"""Passes that begin before the tokens of the last have come: the same answers, and no wait of the host between them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from bench.results import AtLeast, Row
from dormouse_worker.engine.batch import Batch, NewSequence
from dormouse_worker.engine.testing import make_sampling
from dormouse_worker.executor.testing import start
from dormouse_worker.executor.worker.rank_worker import RankWorker
from dormouse_worker.model.testing import write_tiny_model
from tests.gpu.answers import make_steps, run_ahead, tokens_of
from tests.gpu.device_kit import Kit
from tests.gpu.parity_case import BLOCK_SIZE, PROMPTS, WIDER

NUM_TOKENS = 24
GREEDY: dict[str, Any] = {}
RANDOM: dict[str, Any] = {"temperature": 1.0, "seed": 11}
FILTERED: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "seed": 3}
PENALIZED: dict[str, Any] = {"repetition_penalty": 1.5}
SAMPLINGS = {  # one for each prompt
    "greedy": (GREEDY,) * 4,
    "random": (RANDOM,) * 4,
    "filtered": (FILTERED,) * 4,
    "some of each": (GREEDY, RANDOM, FILTERED, GREEDY),
    "one that looks at its tokens": (GREEDY, RANDOM, PENALIZED, GREEDY),
}
WAITS = {"one that looks at its tokens"}


def run(kit: Kit) -> list[Row]:
    """Answer one pass after the other, and then ahead; decode steps ahead must not wait for the device."""
    with tempfile.TemporaryDirectory() as folder:
        worker = kit.make_worker(
            write_tiny_model(Path(folder), **WIDER),
            dtype="float32",
            block_size=BLOCK_SIZE,
            max_num_seqs=len(PROMPTS),
            max_num_batched_tokens=128,
            kv_cache_memory_bytes=4 << 20,
        )
        try:
            start(worker)
            return [_compare(kit, worker, name) for name in SAMPLINGS]
        finally:
            worker.shutdown()


def _compare(kit: Kit, worker: RankWorker, name: str) -> Row:
    def steps() -> Iterator[Batch]:
        samplings = (make_sampling(max_tokens=NUM_TOKENS, **sampling) for sampling in SAMPLINGS[name])
        numbered = enumerate(zip(PROMPTS, samplings, strict=True))
        sequences = [NewSequence(str(number), prompt, [], sampling) for number, (prompt, sampling) in numbered]
        return make_steps(worker, sequences, NUM_TOKENS, BLOCK_SIZE)

    expected = [worker.execute_model(batch) for batch in steps()]
    outputs = run_ahead(worker, steps())
    ahead = [next(outputs)]  # the prompts and the first step, outside: their shapes may come for the first time
    with nullcontext() if name in WAITS else kit.forbid_waits():
        ahead += outputs
    equal = sum(tokens_of(ahead, number) == tokens_of(expected, number) for number in range(len(PROMPTS)))
    return Row(f"ahead, {name}: answers equal", equal, "prompts", goal=AtLeast(len(PROMPTS)))
