"""Weights of 8 and of 4 bits beside our own bfloat16: W2, W4, W1, what is read, peak memory, perplexity.

Engines of one model in processes of their own answer in turns, and rest while another is asked; medians of the
repetitions count. W4 is 64 requests of 32 tokens out, W1 8 requests. A share of the read limit is what the weights of a
token take, by the time per token, of what the machine usually reads. A peak is VmHWM of an engine with the cache of
the other benchmarks, after W2. `--models tiny` measures perplexity alone, of 6 windows of 512 tokens in our kernels:
under a model of 11.6 M parameters and that of `make model`, both trained on Python's library (on a module of the
package rich, which neither saw), and under the demo's SmolLM2-135M, which comes from a file of 4 bits (our documents).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Literal

import rich
from rich.console import Console
from tokenizers import Tokenizer

from bench.helpers import Helper, Job
from bench.limits import measure_read_gb_per_s, use_threads
from bench.memory import peak_mib
from bench.models import SHAPES, Shape, ensure_model
from bench.options import Options, main
from bench.replies import Reply, tokens_per_s, tpot_ms, ttft_ms
from bench.results import AtLeast, AtMost, Goal, RatioAtLeast, RatioAtMost, Row
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
from tools.train_model import Recipe
from tools.train_model import make as train

Method = Literal["none", "int8", "int4"]
METHODS: tuple[Method, ...] = ("none", "int8", "int4")
NAMES: Mapping[str, str] = {"none": "bf16", "int8": "int8", "int4": "int4"}
TRAINED = "tiny"  # of --models: perplexity alone
LARGE = Recipe(hidden_size=384, num_layers=6, num_heads=6, num_kv_heads=3, intermediate_size=1024, steps=250)
W4_OUT, W1_COUNT = 32, 8
WINDOW, NUM_WINDOWS = 512, 6
LAYER_BYTES = {"none": 2, "int8": 1, "int4": 66 / 128}  # of a weight
HEAD_BYTES = {"none": 2, "int8": 1, "int4": 1}
READ_GOALS = {"none": None, "int8": AtLeast(85), "int4": AtLeast(75)}
PEAK_GOALS = {"none": AtMost(1600), "int8": AtMost(1100), "int4": AtMost(850)}  # of q05
TOKEN_GOALS = {"int8": RatioAtMost(0.58), "int4": RatioAtMost(0.40)}
PERPLEXITY_GOALS = {"int8": RatioAtMost(1.005), "int4": RatioAtMost(1.06)}

Laps = Mapping[str, Sequence[Sequence[Reply]]]  # of each side


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    rows = [row for name in options.models if name != TRAINED for row in _speed(name, options, console)]
    return rows + (list(_perplexities(options, console)) if TRAINED in options.models else [])


def _speed(name: str, options: Options, console: Console) -> Iterator[Row]:
    use_threads(options)
    model, limits = str(ensure_model(name, "bf16")), []
    with ExitStack() as stack:
        sides: dict[str, Helper] = {
            method: stack.enter_context(Helper("bench.ours", model, str(options.threads), method, rests=True))
            for method in METHODS
        }
        alone = laps_of(sides, [requests_of("W2", name, rep, options) for rep in range(options.reps + 1)], console)
        peaks = {method: peak_mib(side.pid) for method, side in sides.items()}
        limits = [measure_read_gb_per_s() for _ in range(options.reps)]
        wide = laps_of(sides, [requests_of("W4", name, rep, options) for rep in range(options.reps + 1)], console)
        mixed = laps_of(sides, [requests_of("W1", name, rep, options) for rep in range(options.reps + 1)], console)
    yield from _alone_rows(name, alone)
    yield from _read_rows(name, alone, median(limits))
    yield from _many_rows(f"W4 of {W4_OUT} out, {name}", wide)
    yield from _many_rows(f"W1 of {W1_COUNT}, {name}", mixed)
    for method, mib in peaks.items():
        goal = PEAK_GOALS[method] if name == "q05" else None
        yield Row(f"peak memory of the engine, {name} {NAMES[method]}", mib, "MiB", goal=goal)


def requests_of(workload: str, name: str, rep: int, options: Options) -> tuple[Request, ...]:
    """Return a repetition's requests for a model: of W4 shorter ones, of W1 fewer."""
    count = options.count or (W1_COUNT if workload == "W1" else None)
    requests = make_workload(workload, vocab_size=SHAPES[name].vocab_size, rep=rep, count=count).requests
    if workload != "W4":
        return requests
    return tuple(Request(one.id, one.prompt, W4_OUT) for one in requests)


def laps_of(
    sides: Mapping[str, Helper], rounds: Sequence[tuple[Request, ...]], console: Console, *, led: bool = False
) -> Laps:
    """Return what all sides answer, in turns; the first round warms up."""
    laps: dict[str, list[list[Reply]]] = {name: [] for name in sides}
    for rep, requests in enumerate(rounds):
        for name, side in sides.items():
            replies = side.run(Job(requests, led=led))
            told = f"{ttft_ms(replies):.0f} ms, {tpot_ms(replies):.2f} ms per token, {tokens_per_s(replies):.0f} tok/s"
            console.print(f"  {NAMES.get(name, name)} {rep or 'warm-up'}: {told}", highlight=False)
            if rep:
                laps[name].append(replies)
    return laps


def _alone_rows(name: str, laps: Laps) -> Iterator[Row]:
    first = {method: median(map(ttft_ms, laps[method])) for method in METHODS}
    each = {method: median(map(tpot_ms, laps[method])) for method in METHODS}
    for method in METHODS[1:]:
        what = f"{name} {NAMES[method]} beside our bf16"
        yield Row(f"time per output token W2, {what}", each[method], "ms", each["none"], TOKEN_GOALS[method])
    yield Row(
        f"time to first token W2, {name} int8 beside our bf16", first["int8"], "ms", first["none"], RatioAtMost(0.6)
    )
    yield Row(
        f"time to first token W2, {name} int4 beside our int8", first["int4"], "ms", first["int8"], RatioAtMost(1.15)
    )


def _read_rows(name: str, laps: Laps, limit_gb_per_s: float) -> Iterator[Row]:
    for method in METHODS:
        gb = _bytes_of_token(SHAPES[name], method) / 1e9
        share = 100 * gb / median(map(tpot_ms, laps[method])) * 1e3 / limit_gb_per_s
        yield Row(f"share of the read limit W2, {name} {NAMES[method]}", share, "%", goal=READ_GOALS[method])
    yield Row(f"read limit of the machine beside {name}", limit_gb_per_s, "GB/s")


def _bytes_of_token(shape: Shape, method: Method) -> float:
    return shape.layer_weights * LAYER_BYTES[method] + shape.head_weights * HEAD_BYTES[method]


def _many_rows(what: str, laps: Laps) -> Iterator[Row]:
    rate = {method: median(map(tokens_per_s, laps[method])) for method in METHODS}
    yield Row(f"{what} int8 beside our bf16", rate["int8"], "tok/s", rate["none"], RatioAtLeast(1.5))
    yield Row(f"{what} int4 beside our int8", rate["int4"], "tok/s", rate["int8"], RatioAtLeast(1 / 1.15))


def _perplexities(options: Options, console: Console) -> Iterator[Row]:
    models = {
        "11.6 M trained": (train(LARGE), library_text()),
        "model of make model": (train(Recipe()), library_text()),
        "SmolLM2-135M": (demo_model_dir(), documents()),
    }
    for name, (model, text) in models.items():
        windows = windows_of(model, text, WINDOW, NUM_WINDOWS)
        found = {method: perplexity(model, windows, options, quantization=method) for method in METHODS}
        console.print(f"  {name}: {found}", highlight=False)
        for method in METHODS[1:]:
            goal: Goal | None = PERPLEXITY_GOALS[method]
            if name == "SmolLM2-135M" and method == "int4":
                goal = None  # its weights had 4 bits before
            what = f"perplexity, {name} {NAMES[method]} beside bf16"
            yield Row(what, found[method], "", found["none"], goal)


def library_text() -> str:
    """Return what is installed beside Python's own library, which nobody saw in training."""
    return (Path(rich.__file__).parent / "console.py").read_text("utf-8")


def documents() -> str:
    """Return ours."""
    return "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "docs" / "concepts").glob("*.md")))


def perplexity(model: Path, windows: Sequence[list[int]], options: Options, **changed: Any) -> float:
    """Return that of a text, window by window, each from its second token on; `changed` = of the settings."""
    sent = list[EngineMessage]()
    fields = EngineSettings(
        model=str(model),
        dtype="bfloat16",
        max_model_len=len(windows[0]) + 1,
        kv_cache_memory_bytes=256 << 20,
        threads=options.threads,
        **changed,
    )
    executor = SingleProcessExecutor(fields, {}, Host())
    controller = Controller(fields, executor, send=sent.append, clock=time.monotonic)
    controller.start()
    report = executor.get_memory_report()
    assert report is not None, sent[-1]
    controller.handle(CommandRequest(0, InitializeCache(report.num_gpu_blocks)))
    for number, window in enumerate(windows):
        controller.handle(make_add(str(number), window, max_tokens=1, prompt_logprobs=0))
        while controller.has_work:
            controller.step()
    controller.handle(CommandRequest(1, Shutdown()))
    outputs = [output for message in sent if isinstance(message, StepOutputs) for output in message.outputs]
    found = [row.sampled for output in outputs for row in output.prompt_logprobs or ()]
    assert len(found) == sum(len(window) - 1 for window in windows), "every token has one"
    return math.exp(-sum(found) / len(found))


def windows_of(model: Path, text: str, size: int, count: int) -> list[list[int]]:
    """Return the first tokens of a text, so many windows of that size."""
    ids: list[int] = Tokenizer.from_file(str(model / "tokenizer.json")).encode(text).ids
    assert len(ids) >= size * count, len(ids)
    return [ids[number * size : (number + 1) * size] for number in range(count)]


if __name__ == "__main__":
    main("quantized", __doc__, measure)
