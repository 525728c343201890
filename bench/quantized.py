"""Weights of 8 bits beside our own bfloat16: one request alone (W2), its processor time, peak memory, perplexity.

Engines of the model `small` in processes of their own answer in turns, and rest while the other is asked; the ratio of
the turn in the middle counts. Processor time is what all threads of an engine took for W2, from /proc: on a machine
that others use it says more than the clock. A peak is VmHWM of the engine, cache of 1 GiB, after W2. Perplexity is that of
3,072 tokens of our documents under the demo's SmolLM2-135M, in our kernels.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from rich.console import Console
from tokenizers import Tokenizer

from bench.helpers import Helper, Job
from bench.memory import peak_mib
from bench.models import SHAPES, ensure_model
from bench.options import Options, main
from bench.replies import tpot_ms, ttft_ms
from bench.results import RatioAtMost, Row
from bench.workload import Request, make_workload
from dormouse_worker.common.commands import InitializeCache, Shutdown
from dormouse_worker.common.host import Host
from dormouse_worker.common.ipc import CommandRequest, EngineMessage, StepOutputs
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.controller import Controller
from dormouse_worker.engine.testing import make_add
from dormouse_worker.executor.single_process import SingleProcessExecutor
from tools.bootstrap import ROOT
from tools.demo_model import demo_model_dir

MODEL = "small"
METHODS: tuple[Literal["none", "int8"], ...] = ("none", "int8")
FIGURES = (  # what, unit, goal
    ("time to first token", "ms", RatioAtMost(0.6)),
    ("time per output token", "ms", RatioAtMost(0.58)),
    ("processor time of an answer", "ms", None),
)
WINDOW, NUM_WINDOWS = 512, 6


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    return [*_race(options, console), _perplexities(options, console)]


def _race(options: Options, console: Console) -> Iterator[Row]:
    model = str(ensure_model(MODEL, "bf16"))
    laps = []
    with ExitStack() as stack:
        plain, quantized = (
            stack.enter_context(Helper("bench.ours", model, str(options.threads), method, rests=True))
            for method in METHODS
        )
        for rep in range(options.reps + 1):
            requests = make_workload("W2", vocab_size=SHAPES[MODEL].vocab_size, rep=rep, count=options.count).requests
            ours, peer = (_lap(engine, requests) for engine in (quantized, plain))
            laps.append(list(zip(ours, peer, strict=True)))
            console.print(f"  int8 {ours[1]:.2f} ms per token; bf16 {peer[1]:.2f}", highlight=False)
        peaks = peak_mib(quantized.pid), peak_mib(plain.pid)
    for number, (what, unit, goal) in enumerate(FIGURES):
        ours_ms, peer_ms = _middle([lap[number] for lap in laps[1:]])
        yield Row(f"{what} W2, {MODEL} int8 beside our bf16", ours_ms, unit, peer_ms, goal)
    yield Row(f"peak memory of the engine, {MODEL} int8 beside our bf16", peaks[0], "MiB", peaks[1])


def _lap(engine: Helper, requests: tuple[Request, ...]) -> tuple[float, float, float]:
    """Return the figures of one answer."""
    before_s = _processor_s(engine.pid)
    replies = engine.run(Job(requests))
    return ttft_ms(replies), tpot_ms(replies), (_processor_s(engine.pid) - before_s) * 1000


def _processor_s(pid: int) -> float:
    """Return the processor time of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = fields[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _middle(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the pair whose ratio is the median."""
    return sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]


def _perplexities(options: Options, console: Console) -> Row:
    plain, quantized = (_perplexity(options, method) for method in METHODS)
    console.print(f"  perplexity {quantized:.4f}, plain {plain:.4f}", highlight=False)
    what = "perplexity, SmolLM2-135M int8 beside plain: our kernels, bfloat16"
    return Row(what, quantized, "", plain, RatioAtMost(1.005))


def _perplexity(options: Options, method: Literal["none", "int8"]) -> float:
    """Return that of the text, window by window, each from its second token on."""
    model, sent = demo_model_dir(), list[EngineMessage]()
    fields = EngineSettings(
        model=str(model),
        max_model_len=1024,
        kv_cache_memory_bytes=256 << 20,
        threads=options.threads,
        quantization=method,
    )
    executor = SingleProcessExecutor(fields, {}, Host())
    controller = Controller(fields, executor, send=sent.append, clock=time.monotonic)
    controller.start()
    report = executor.get_memory_report()
    assert report is not None, sent[-1]
    controller.handle(CommandRequest(0, InitializeCache(report.num_gpu_blocks)))
    for number, window in enumerate(_windows(Tokenizer.from_file(str(model / "tokenizer.json")))):
        controller.handle(make_add(str(number), window, max_tokens=1, prompt_logprobs=0))
        while controller.has_work:
            controller.step()
    controller.handle(CommandRequest(1, Shutdown()))
    outputs = [output for message in sent if isinstance(message, StepOutputs) for output in message.outputs]
    found = [row.sampled for output in outputs for row in output.prompt_logprobs or ()]
    assert len(found) == NUM_WINDOWS * (WINDOW - 1), "every token has one"
    return math.exp(-sum(found) / len(found))


def _windows(tokenizer: Tokenizer) -> list[list[int]]:
    text = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "docs" / "concepts").glob("*.md")))
    ids: list[int] = tokenizer.encode(text).ids
    return [ids[number * WINDOW : (number + 1) * WINDOW] for number in range(NUM_WINDOWS)]


if __name__ == "__main__":
    main("quantized", __doc__, measure)
