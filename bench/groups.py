"""Groups: ranks that share a model beside one process on the same cores; what a step sends; a rank that is killed.

    tokens      four tiny models, T=2, P=2 and both, whatever happens on the way: what one worker says, token by token
    decode      the sides take turns and the middle pair counts: what disturbs one disturbs the other
    bytes       of a step to each rank, beside sequences of 300 and of 1,900 tokens
    recovery    two groups behind a gateway; kill -9 of each rank of one, under load

Random weights in float32. Ranks are processes over gloo on this machine's cores; nothing here says how GPUs do.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import msgspec
from rich.console import Console

from bench import neighbours
from bench.groups_figures import Pair, Tally, decode_rows, recovery_rows, tokens_row, traffic_row
from bench.groups_probe import CIRCUMSTANCES, Decode, Said, Say, Speed
from bench.groups_recovery import measure_recovery
from bench.groups_traffic import measure_step_bytes
from bench.helpers import Helper
from bench.models import SHAPES, Shape
from bench.options import Options, main
from bench.results import Row
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.testing import MAX_POSITIONS, write_tiny_model

HALF_BILLION = replace(SHAPES["q05"], model_type="llama")  # 494 M parameters, the head is tied
ARCHITECTURES = ("llama", "qwen3", "gemma2", "gpt2")
NUM_LAYERS = {"gpt2": {"n_layer": 4}}
SIZES = ((2, 1), (1, 2), (2, 2))  # tensor, pipeline
PROMPTS = [[(i * i * 7 + i * n + 3) % 250 for i in range(length)] for n, length in enumerate((1, 5, 17, 30))]
NUM_SAID = 10
GOALS = {(1, 2): 0.85, (2, 1): 0.8}  # times one process
NUM_SEQUENCES = 64
NUM_DECODED = 6  # tokens of each sequence, in a measurement
MOST_DISTURBED = 8  # pairs that are measured again for the sake of a quiet moment


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    tally = _compare_tokens(console)
    decoding = list(_measure_decode(options, console))
    traffic = traffic_row(*measure_step_bytes())
    return [tokens_row(tally), *decoding, traffic, *recovery_rows(measure_recovery(console))]


def _compare_tokens(console: Console) -> Tally:
    """Have every group say what one worker says."""
    tally = Tally()
    for architecture in ARCHITECTURES:
        with tempfile.TemporaryDirectory(prefix="dormouse-bench-") as directory:
            layers = NUM_LAYERS.get(architecture, {"num_hidden_layers": 4})
            model = write_tiny_model(Path(directory), architecture, **layers)
            alone = _said(model, (1, 1))["in one batch"]
            for sizes in SIZES:
                said = _said(model, sizes)
                tally.add(f"{architecture}, T={sizes[0]} P={sizes[1]}", said, alone)
    console.print(f"  {tally}", highlight=False)
    return tally


def _said(model: Path, sizes: tuple[int, int]) -> dict[str, list[list[int]]]:
    settings = EngineSettings(
        model=str(model), dtype="float32", block_size=4, max_model_len=MAX_POSITIONS, max_num_seqs=4, threads=1
    )
    with _probe(settings, sizes) as probe:
        said = probe.ask(Say(PROMPTS, NUM_SAID), Said).tokens
    assert said.keys() == CIRCUMSTANCES.keys()
    return said


def _measure_decode(options: Options, console: Console) -> Iterator[Row]:
    job = Decode(options.count or NUM_SEQUENCES, NUM_DECODED)
    with _random_model(HALF_BILLION) as model:
        for sizes, goal in GOALS.items():
            pairs = _take_turns(model, sizes, job, 2 * options.reps - 1)
            console.print(f"  T={sizes[0]} P={sizes[1]}: " + ", ".join(map(str, pairs)), highlight=False)
            yield from decode_rows(sizes, job.num_sequences, pairs, goal)


def _take_turns(model: Path, sizes: tuple[int, int], job: Decode, count: int) -> list[Pair]:
    """Return so many pairs: those that other programs disturbed least of all that were taken."""
    cores = len(os.sched_getaffinity(0))
    settings = EngineSettings(
        model=str(model), dtype="float32", load_format="dummy", max_model_len=128, max_num_seqs=job.num_sequences
    )
    pairs: list[Pair] = []
    with ExitStack() as stack:
        alone = stack.enter_context(_probe(msgspec.structs.replace(settings, threads=cores), (1, 1)))
        of_pod = msgspec.structs.replace(settings, threads=max(1, cores // sizes[1]))  # its ranks share them
        group = stack.enter_context(_probe(of_pod, sizes))
        for side in (alone, group):
            side.ask(job, Speed)
        while sum(pair.is_quiet for pair in pairs) < count and len(pairs) < count + MOST_DISTURBED:
            before = neighbours.read()
            ours, peer = (side.ask(job, Speed).tokens_per_s for side in (group, alone))
            pairs.append(Pair(ours, peer, before.cores_of_others(neighbours.read())))
    return sorted(pairs, key=lambda pair: pair.cores_of_others)[:count]


def _probe(settings: EngineSettings, sizes: tuple[int, int]) -> Helper:
    tensor, pipeline = sizes
    sized = msgspec.structs.replace(
        settings, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, memory_limit_bytes=10 << 30
    )
    return Helper("bench.groups_probe", msgspec.json.encode(sized).decode())


@contextmanager
def _random_model(shape: Shape) -> Iterator[Path]:
    """A directory with no more than the model's shape: the weights are drawn by whoever loads it."""
    config = {"architectures": ["LlamaForCausalLM"]}
    with tempfile.TemporaryDirectory(prefix="dormouse-bench-") as directory:
        Path(directory, "config.json").write_text(json.dumps({**config, **asdict(shape)}), "utf-8")
        yield Path(directory)


if __name__ == "__main__":
    main("groups", __doc__, measure)
