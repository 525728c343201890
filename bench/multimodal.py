"""Images in prompts: a second question about one, streams of text beside them, beside transformers and vLLM, memory.

The part `engine` is in one process; `vllm` and `memory` are told of in `multimodal_peer` and `multimodal_memory`.
The model has SmolVLM-256M's shape, random weights and bfloat16; an image has five tiles, 320 tokens. A question is 24
tokens. The time to the first token is of a request alone. Streams of text decode while 16 requests with images of their
own arrive. Beside transformers' `generate`, which gets all requests as one batch: 8 of them, one tile and 64 tokens
each. --parts engine, vllm or memory measures one of the three.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import msgspec
import torch
from rich.console import Console
from transformers import AutoModelForImageTextToText

from bench import multimodal_memory, multimodal_peer
from bench.limits import use_threads
from bench.multimodal_model import TILE_TOKENS, write_weights
from bench.options import Measure, Options, main
from bench.results import AtMost, RatioAtLeast, RatioAtMost, Row
from dormouse_worker.common.ipc import AddRequest
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.testing import make_add
from dormouse_worker.executor.worker.cpu_worker import CpuWorker
from dormouse_worker.model.testing_vision import build_prompt
from dormouse_worker.model.testing_vision_families import Picture

IMAGE = 260  # the placeholder's id is that of the kit
NUM_TILES, QUESTION_TOKENS = 5, 24
NUM_STREAMS, NUM_SEEING, STREAM_TOKENS = 8, 16, 160
NUM_REQUESTS, OUTPUT_TOKENS = 8, 64

Part = list[int] | Picture


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows of the parts that are asked for, or of all."""
    wanted = options.parts or PARTS
    rows = [row for name, part in PARTS.items() if name in wanted for row in part(options, console)]
    for row in rows:
        console.print(f"  {row.what}: {row.ours:.4g} beside {row.peer}", highlight=False)
    return rows


def _in_process(options: Options, console: Console) -> list[Row]:
    del console  # seconds at most
    use_threads(options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        model = write_weights(path / "model", IMAGE)
        side = Side(model, path, options.threads)
        rows = [*_second_question(side, options.reps), _beside_text(side), _beside_transformers(side, model)]
        side.worker.shutdown()
    return rows


PARTS: Mapping[str, Measure] = {
    "engine": _in_process,
    "vllm": multimodal_peer.measure,
    "memory": multimodal_memory.measure,
}


@dataclass
class Side:
    """An engine in this process."""

    model: Path
    folder: Path
    threads: int
    worker: CpuWorker = field(init=False)
    num_encoded: int = 0  # images
    _names: Any = field(default_factory=count)

    def __post_init__(self) -> None:
        settings = EngineSettings(
            model=str(self.model),
            dtype="bfloat16",
            max_model_len=2048,
            max_num_seqs=32,
            max_num_batched_tokens=512,
            kv_cache_memory_bytes=1 << 30,
            threads=self.threads,
            image_dir=str(self.folder),
        )
        self.worker = CpuWorker(settings, 0)
        self.worker.init_device()
        self.worker.load_model()
        counts = self.worker.determine_num_available_blocks()
        self.worker.initialize_cache(*counts)
        report = self.worker.get_memory_report()
        assert report is not None, "it was measured"
        self.engine = build_engine(settings, report, counts, self.worker, clock=time.monotonic)

    def add(self, parts: Sequence[Part], max_tokens: int) -> str:
        """Queue a request; return its id."""
        return self.queue(self.prepare(parts, max_tokens))

    def prepare(self, parts: Sequence[Part], max_tokens: int) -> AddRequest:
        """Write its images' files, as a front does in a process of its own; return the request."""
        tokens, images = build_prompt(parts, self.folder)
        message = make_add(str(next(self._names)), tokens, max_tokens=max_tokens)
        return msgspec.structs.replace(message, images=images)

    def queue(self, message: AddRequest) -> str:
        """Queue a request that was prepared; return its id."""
        why = self.engine.add(message)
        assert why is None, why
        return message.request_id

    def run(self, on_step: Callable[[set[str]], None] | None = None) -> float:
        """Run all to their end; return the seconds. `on_step` is told whose tokens came."""
        started_s = time.perf_counter()
        while (outputs := self.engine.step()) is not None:
            assert not outputs.failed, outputs.failed
            self.num_encoded += outputs.mm_cache_queries - outputs.mm_cache_hits
            if on_step is not None:
                on_step({output.request_id for output in outputs.outputs if output.token_ids})
        return time.perf_counter() - started_s


def make_picture(seed: int, num_tiles: int) -> Picture:
    """Return an image of so many tiles, of which each seed makes another."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randn(1, num_tiles, 3, 512, 512, generator=generator)
    mask = torch.ones(1, num_tiles, 512, 512, dtype=torch.long)
    return Picture({"pixel_values": pixels, "pixel_attention_mask": mask}, (TILE_TOKENS,) * num_tiles, tile_dim=1)


def make_question(seed: int) -> list[int]:
    """Return tokens of text, of which each seed makes others."""
    return [1000 + (seed * 31 + place * 7) % 40000 for place in range(QUESTION_TOKENS)]


def _second_question(side: Side, reps: int) -> list[Row]:
    firsts, seconds, encoded = [], [], 0
    for rep in range(reps + 1):  # after one to warm up
        picture = make_picture(rep, NUM_TILES)
        side.add([[1], picture, make_question(2 * rep)], 1)
        firsts.append(side.run())
        before = side.num_encoded
        side.add([[1], picture, make_question(2 * rep + 1)], 1)
        seconds.append(side.run())
        encoded += side.num_encoded - before
    what = f"TTFT of a second question about an image, beside the first (SmolVLM-256M's shape, {NUM_TILES} tiles)"
    return [
        Row(what, median(seconds[1:]), "s", peer=median(firsts[1:]), goal=RatioAtMost(0.35)),
        Row("the same: images encoded for second questions", float(encoded), "images", goal=AtMost(0)),
    ]


def _beside_text(side: Side) -> Row:
    """Return the gaps between tokens of text streams, with images that arrive beside and without."""
    alone, beside = _gaps(side, 0), _gaps(side, NUM_SEEING)
    what = f"ITL p99 of {NUM_STREAMS} streams of text while {NUM_SEEING} requests with an image arrive, beside without"
    return Row(what, quantiles(beside, n=100)[98], "s", peer=quantiles(alone, n=100)[98], goal=RatioAtMost(1.3))


def _gaps(side: Side, num_seeing: int) -> list[float]:
    text = {side.add([make_question(500 + seed)], STREAM_TOKENS) for seed in range(NUM_STREAMS)}
    prompts: list[list[Part]] = [[[1], make_picture(100 + seed, 1), make_question(seed)] for seed in range(num_seeing)]
    waiting = [side.prepare(parts, 16) for parts in prompts]
    last_s: dict[str, float] = {}
    gaps: list[float] = []
    num_steps = 0

    def note(names: set[str]) -> None:
        nonlocal num_steps
        now_s, num_steps = time.perf_counter(), num_steps + 1
        for name in names & text:
            if name in last_s:
                gaps.append(now_s - last_s[name])
            last_s[name] = now_s
        if waiting and num_steps % 8 == 0:
            side.queue(waiting.pop())

    side.run(note)
    return gaps


def _beside_transformers(side: Side, model: Path) -> Row:
    pictures = [make_picture(1000 + seed, 1) for seed in range(NUM_REQUESTS)]
    prompts: list[list[Part]] = [[[1], picture, make_question(seed)] for seed, picture in enumerate(pictures)]
    for parts in prompts:
        side.add(parts, OUTPUT_TOKENS)
    ours = NUM_REQUESTS * OUTPUT_TOKENS / side.run()
    peer: Any = AutoModelForImageTextToText.from_pretrained(model, dtype=torch.bfloat16)  # nosec B615  # of a directory
    tokens = torch.tensor([build_prompt(parts, side.folder)[0] for parts in prompts])
    arguments = {name: torch.cat([picture.tensors[name] for picture in pictures]) for name in pictures[0].tensors}
    started_s = time.perf_counter()
    with torch.inference_mode():
        peer.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            do_sample=False,
            max_new_tokens=OUTPUT_TOKENS,
            min_new_tokens=OUTPUT_TOKENS,
            pad_token_id=2,
            **arguments,
        )
    theirs = NUM_REQUESTS * OUTPUT_TOKENS / (time.perf_counter() - started_s)
    what = f"{NUM_REQUESTS} requests with an image, {OUTPUT_TOKENS} tokens each, beside transformers' generate"
    return Row(what, ours, "output tokens/s", peer=theirs, goal=RatioAtLeast(3))


if __name__ == "__main__":
    main("multimodal", __doc__, measure)
