"""Sleep and wake on the fake device: what leaves, how fast it returns, what stays behind; the profile's error.

A random Llama of about 1 GB is made for it. Every figure comes from a process of its own; a wake and what it is
compared with take turns in one process, so that what disturbs one disturbs both, and the middle pair counts.
`docs/concepts/sleep.md` explains what is measured. The picture beside the results shows the phases.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rich.console import Console

from bench.full_load import measure_load
from bench.helpers import environment
from bench.models import ensure_model
from bench.options import Options, main
from bench.results import Row
from bench.sleep_figures import Cycle, Held, cycle_rows, drift_rows, load_row, median_phases, residue_rows
from bench.sleep_picture import Bar, draw

LEVELS = (1, 2)
NUM_CYCLES = 100
PAIRS_PER_REP = 3
LARGE = {  # 1.07 GB as float32: large enough that copies, not calls, take the time
    "hidden_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "intermediate_size": 4096,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}
LITTLE = {**LARGE, "hidden_size": 96, "num_hidden_layers": 1, "intermediate_size": 128, "vocab_size": 512}  # 1 MB
Answer = TypeVar("Answer")


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows, and draw the picture where results are written."""
    with random_model(LARGE) as model:
        count = PAIRS_PER_REP * options.reps
        cycles = {level: _ask(list[Cycle], "cycles", model, level, count) for level in LEVELS}
        for cycle in (cycle for some in cycles.values() for cycle in some):
            console.print(f"  {cycle}", highlight=False)
        asleep = {level: _ask(Held, "residue", model, level, 1) for level in LEVELS}
    with random_model(LITTLE) as small:
        reference = _ask(Held, "residue", small, 0, 1)
    before, after = _ask(tuple[Held, Held], "drift", ensure_model("tiny"), 1, options.count or NUM_CYCLES)
    console.print(f"  drift: {before} to {after}", highlight=False)
    load = measure_load(options, console)
    if options.results_dir is not None:
        options.results_dir.mkdir(parents=True, exist_ok=True)
        (options.results_dir / "sleep.svg").write_text(_picture(cycles), "utf-8")
    drift = drift_rows(options.count or NUM_CYCLES, before, after)
    return [*cycle_rows(cycles), *residue_rows(reference, asleep), *drift, load_row(load)]


def _ask(kind: type[Answer], program: str, model: Path, number: int, count: int) -> Answer:
    """Run a measuring program and return its answer. Raises CalledProcessError; its words are above then."""
    command = [sys.executable, "-m", "bench.sleep_probe", program, str(model), str(number), str(count)]
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=kind)


@contextmanager
def random_model(shape: Mapping[str, int]) -> Iterator[Path]:
    """Make a random model, gone after the block; its files are in the page cache, as they were just written."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(1)
    fields: dict[str, Any] = {**shape, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    with tempfile.TemporaryDirectory(prefix="dormouse-bench-") as directory:
        LlamaForCausalLM(LlamaConfig(**fields)).save_pretrained(directory)
        yield Path(directory)


def _picture(cycles: Mapping[int, Sequence[Cycle]]) -> str:
    bars = []
    for level, some in cycles.items():
        bars.append(Bar(f"sleep level {level}", median_phases(some, "sleep_phases")))
        bars.append(Bar(f"wake level {level}", median_phases(some, "wake_phases")))
    weights, cache = cycles[1][0].weights_bytes, cycles[1][0].cache_bytes
    return draw(f"Sleep and wake of {weights / 1e9:.2f} GB weights and {cache / 1e9:.2f} GB cache, fake device", bars)


if __name__ == "__main__":
    main("sleep", __doc__, measure)
