"""What adapters cost, in one process: W1 with 16 of them, requests without one, a cold one, sleep and wake.

Engines of the same model, with room for adapters and without, answer in turns; the median of the ratios counts. Time is
the processor's, which neighbours change less than the clock's: with one thread (--threads 1) it is that of the work.
vLLM is measured beside by the clock, with the same adapters. Adapters have rank 16 in all linear layers. A cold
adapter's file is in the page cache; its time is that of reading it, and of its first token beyond that of a loaded one.
What others feel is the time between two of their tokens while at one in COLD_EVERY tokens somebody asks for a cold
adapter, beside the same requests for one that is there. Who routes to whom is `adapter_routing`, and what hundreds take
of the operator `adapter_offers`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from statistics import median, quantiles

import msgspec
from rich.console import Console

from bench.helpers import Job
from bench.limits import use_threads
from bench.models import SHAPES, ensure_model
from bench.options import Options, main
from bench.race import vllm_helper
from bench.replies import tokens_per_s
from bench.results import AtMost, RatioAtLeast, RatioAtMost, Row
from bench.workload import Request, make_workload
from dormouse_worker.common.adapters import AdapterInfo
from dormouse_worker.common.commands import AddLora, Command, InitializeCache, RemoveLora, Shutdown, Sleep, WakeUp
from dormouse_worker.common.host import Host
from dormouse_worker.common.ipc import AddRequest, CommandRequest, CommandResult, EngineMessage, Sampling, StepOutputs
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.controller import Controller
from dormouse_worker.executor.single_process import SingleProcessExecutor
from dormouse_worker.model.testing_adapters import write_adapter

NUM_ADAPTERS, RANK = 16, 16
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
NUM_SEQS, CACHE_BYTES = 64, 768 << 20
NUM_STREAMS, COLD_EVERY = 16, 32
LATE = Request("late", list(range(10, 42)), 1)


@dataclass
class Side:
    """One engine, driven as its process drives it."""

    model: Path
    threads: int
    has_adapters: bool
    _sent: list[EngineMessage] = field(default_factory=list)
    _results: list[CommandResult] = field(default_factory=list)
    _ids: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        settings = EngineSettings(
            model=str(self.model),
            max_num_seqs=NUM_SEQS,
            kv_cache_memory_bytes=CACHE_BYTES,
            enable_prefix_caching=False,
            threads=self.threads,
            enable_lora=self.has_adapters,
            max_loras=NUM_ADAPTERS,
            max_cpu_loras=NUM_ADAPTERS + 1,
            max_lora_rank=RANK,
        )
        executor = SingleProcessExecutor(settings, {}, Host())
        self.controller = Controller(settings, executor, send=self._take, clock=time.monotonic)
        self.controller.start()
        report = executor.get_memory_report()
        assert report is not None, self._sent[-1]
        self.run_command(InitializeCache(report.num_gpu_blocks))

    def _take(self, message: EngineMessage) -> None:
        if isinstance(message, CommandResult):
            self._results.append(message)
        else:
            self._sent.append(message)

    def run_command(self, command: Command) -> tuple[str, float]:
        """Return what a command answers, and its seconds."""
        begun_s = time.perf_counter()
        self.controller.handle(CommandRequest(0, command))
        while (result := self._result()) is None:
            self.controller.step()
        return result, time.perf_counter() - begun_s

    def _result(self) -> str | None:
        """Return what a command answered, once; None = it is under way."""
        if not self._results:
            return None
        result = self._results.pop()
        if result.error_reason:
            raise RuntimeError(result.error_message)
        return str(result.value)

    def add(self, path: Path) -> tuple[str, float]:
        """Load an adapter; return its digest and the seconds."""
        told, seconds = self.run_command(AddLora(str(path)))
        return msgspec.json.decode(told, type=AdapterInfo).digest, seconds

    def answer(
        self,
        requests: Sequence[Request],
        adapters: Sequence[str] = ("",),
        *,
        clock: Callable[[], float] = time.process_time,
    ) -> float:
        """Answer all requests at once, with adapters in turns; return tokens per second, of the processor's time."""
        self._sent.clear()
        begun_s = clock()
        for number, request in enumerate(requests):
            self._begin(request, adapters[number % len(adapters)])
        while self.controller.has_work:
            self.controller.step()
        seconds = clock() - begun_s
        told = [output for sent in self._sent if isinstance(sent, StepOutputs) for output in sent.outputs]
        num_tokens = sum(len(output.token_ids) for output in told)
        assert num_tokens == sum(request.max_tokens for request in requests), "all were answered to their ends"
        return num_tokens / seconds

    def intervals(
        self, requests: Sequence[Request], coming: Path, *, is_cold: bool
    ) -> tuple[list[tuple[str, float]], list[float]]:
        """Answer all requests at once; return the seconds between their tokens, and what was done in these besides.

        Now and then others ask for an adapter. Cold, it was forgotten, and they wait until it is there: the seconds
        that it takes come second.
        """
        for request in requests:
            self._begin(request)
        digest, asked_s, is_there, is_late, loads_s = self.add(coming)[0], 0.0, False, False, []
        ends_s, kinds = [time.perf_counter()], []
        while self.controller.has_work:
            if len(ends_s) % COLD_EVERY == 0 and not asked_s:
                if is_cold:
                    self.run_command(RemoveLora(digest))
                    self.controller.handle(CommandRequest(0, AddLora(str(coming))))
                    asked_s = ends_s[-1]
                else:
                    self._begin(LATE, digest)
                    is_late = True
            kinds.append("their prompt" if is_late else "copy" if is_there else "reading" if asked_s else "nothing")
            self.controller.step()
            ends_s.append(time.perf_counter())
            if is_late := is_there:  # who waited came while this pass ran: the front had to hear of it first
                self._begin(LATE, digest)
            if is_there := bool(asked_s) and self._result() is not None:
                loads_s.append(ends_s[-1] - asked_s)
                asked_s = 0.0
        self.run_command(RemoveLora(digest))
        seconds = [end_s - begun_s for begun_s, end_s in pairwise(ends_s)]
        return [*zip(kinds, seconds, strict=True)][1:], loads_s  # the first one is the prompts'

    def _begin(self, request: Request, adapter: str = "") -> None:
        sampling = Sampling(0, 1, 0, 0, 0, request.max_tokens)
        self.controller.handle(AddRequest(str(next(self._ids)), list(request.prompt), sampling, adapter=adapter))

    def cycle(self) -> float:
        """Sleep at level 1 and wake; return the seconds."""
        return self.run_command(Sleep(1))[1] + self.run_command(WakeUp())[1]


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows, of the model `small`."""
    use_threads(options)
    model = ensure_model("small", "bf16")
    with tempfile.TemporaryDirectory() as folder:
        paths = [
            write_adapter(Path(folder, str(seed)), model, rank=RANK, targets=TARGETS, seed=seed, alpha=RANK)
            for seed in range(NUM_ADAPTERS + 1)
        ]
        plain, adapted = (Side(model, options.threads, has_adapters=has) for has in (False, True))
        digests = [adapted.add(path)[0] for path in paths[:-1]]
        rows = [*_speed(options, console, plain, adapted, digests), *_sleep(options, plain, adapted)]
        rows += _beside_cold(options, console, adapted, paths[-1])
        rows.append(_cold(adapted, paths[-1], digests[0]))
        rows += _beside_vllm(options, console, adapted, dict(zip(map(str, paths), digests, strict=False)))
        for side in (plain, adapted):
            side.run_command(Shutdown())
    return rows


def _speed(options: Options, console: Console, plain: Side, adapted: Side, digests: Sequence[str]) -> Iterator[Row]:
    laps = []
    for rep in range(options.reps + 1):
        requests = _requests(options, rep)
        lap = plain.answer(requests), adapted.answer(requests), adapted.answer(requests, digests)
        console.print(
            f"  {lap[0]:.0f}, {lap[1]:.0f} unused, {lap[2]:.0f} with {NUM_ADAPTERS} adapters", highlight=False
        )
        laps.append(lap)
    measured = laps[1:]  # the first one warms up
    for column, what, goal in (
        (2, f"W1, small, {NUM_ADAPTERS} adapters of rank {RANK} beside none", 0.85),
        (1, "W1, small, no adapter in an engine that has them", 0.99),
    ):
        typical = sorted(measured, key=lambda lap: lap[column] / lap[0])[len(measured) // 2]
        yield Row(what, typical[column], "output tokens / cpu second", typical[0], RatioAtLeast(goal))


def _beside_vllm(options: Options, console: Console, adapted: Side, digests: Mapping[str, str]) -> Iterator[Row]:
    model = str(adapted.model)
    helper = "vllm" in options.peers and vllm_helper(model, "bfloat16", options, console, adapters=[*digests])
    if not helper:
        return
    laps = []
    with helper:
        for rep in range(options.reps + 1):
            requests = _requests(options, rep)
            ours = adapted.answer(requests, [*digests.values()], clock=time.perf_counter)
            vllms = tokens_per_s(helper.run(Job(requests, stream_interval=NUM_SEQS)))
            console.print(f"  {ours:.0f} beside vLLM {vllms:.0f} with {NUM_ADAPTERS} adapters", highlight=False)
            laps.append((ours, vllms))
    ours, vllms = sorted(laps[1:], key=lambda lap: lap[0] / lap[1])[options.reps // 2]
    what = f"W1, small, {NUM_ADAPTERS} adapters of rank {RANK} beside vLLM"
    yield Row(what, ours, "output tokens / s", vllms, RatioAtLeast(3))


def _requests(options: Options, rep: int) -> tuple[Request, ...]:
    vocab_size = SHAPES["small"].vocab_size
    return make_workload("W1", vocab_size=vocab_size, rep=rep, count=options.count or NUM_SEQS).requests


def _sleep(options: Options, plain: Side, adapted: Side) -> Iterator[Row]:
    laps = [(adapted.cycle(), plain.cycle()) for _ in range(options.reps)]
    extra_ms = median(1e3 * (with_them - without) for with_them, without in laps)
    yield Row(f"sleep level 1 and wake: added by {NUM_ADAPTERS} adapters", max(0.0, extra_ms), "ms", goal=AtMost(10))


def _beside_cold(options: Options, console: Console, adapted: Side, path: Path) -> Iterator[Row]:
    """Yield what others feel, and how long a load takes beside them; the adapter is forgotten afterwards."""
    requests = [Request(str(number), list(range(10, 42)), 8 * COLD_EVERY) for number in range(NUM_STREAMS)]
    laps = []
    for _ in range(options.reps):
        (cold, loads_s), (warm, _) = (adapted.intervals(requests, path, is_cold=each) for each in (True, False))
        laps.append((_p99_ms(cold), _p99_ms(warm), 1e3 * median(loads_s)))
        for name, intervals in (("cold", cold), ("loaded", warm)):
            console.print(f"  {name}: {', '.join(_by_kind(intervals))}", highlight=False)
    ours, warm_ms, _ = sorted(laps, key=lambda lap: lap[0] / lap[1])[len(laps) // 2]
    asked = f"while one in {COLD_EVERY} somebody asks for an adapter"
    yield Row(
        f"{NUM_STREAMS} streams, p99 between tokens {asked}: cold beside loaded", ours, "ms", warm_ms, RatioAtMost(1.1)
    )
    yield Row(f"time to load a cold adapter beside {NUM_STREAMS} streams", median(lap[2] for lap in laps), "ms")


def _p99_ms(intervals: Sequence[tuple[str, float]]) -> float:
    return 1e3 * quantiles([seconds for _, seconds in intervals], n=100)[98]


def _by_kind(intervals: Sequence[tuple[str, float]]) -> Iterator[str]:
    """Yield what passes took in which something else was done: which of them are the long ones."""
    for kind in dict.fromkeys(kind for kind, _ in intervals):
        taken = [1e3 * seconds for each, seconds in intervals if each == kind]
        yield f"{kind} {len(taken)} × {median(taken):.1f} ms, the longest {max(taken):.1f}"


def _cold(adapted: Side, path: Path, warm: str) -> Row:
    prompt = list(range(10, 42))
    first = [Request("cold", prompt, 1)]
    adapted.answer(first, [warm])
    warm_s = 1 / adapted.answer(first, [warm])
    digest, read_s = adapted.add(path)
    cold_s = 1 / adapted.answer(first, [digest])
    return Row("first use of a cold adapter: added time", 1e3 * (read_s + cold_s - warm_s), "ms", goal=AtMost(50))


if __name__ == "__main__":
    main("adapters", __doc__, measure)
