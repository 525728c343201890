"""What a step of the engine costs around the kernels of its forward pass, with 64 decoding sequences or with one.

The real engine and the real model runner work for a real model; the one thing that is not counted is the call of our
kernels. Processor time of the engine's thread: what else the machine does makes it longer by lost caches only.
`python -m bench.step_cost --profile` shows where the time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from types import MappingProxyType

import msgspec
import torch

from bench.models import ensure_model
from dormouse_worker.common.frames import encode_frame
from dormouse_worker.common.grammar import Grammar
from dormouse_worker.common.host import Host
from dormouse_worker.common.ipc import EngineMessage, StepOutputs
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.batch import Batch, ModelOutput
from dormouse_worker.engine.engine import Engine
from dormouse_worker.engine.grammars import Preparation, Prepared
from dormouse_worker.engine.testing import make_add, make_report
from dormouse_worker.executor.testing_drafts import FreeRows
from dormouse_worker.model.attention.native import NativeBackend
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.model.lean.fit import build_native
from dormouse_worker.model.loader import load
from dormouse_worker.model.runner import ModelRunner
from dormouse_worker.native import abi
from dormouse_worker.native.library import Kernels, Missing, load_kernels

NUM_SEQS = 64
PROMPT_TOKENS = 128
MEASURED_STEPS, DRAFTED_STEPS = 256, 24
STEPS_OF_PROMPTS = 16  # at most, until all prompts are read, where there are drafts
RANDOM = {"temperature": 0.8, "top_p": 0.95}  # what callers often ask for


@dataclass(frozen=True, slots=True)
class StepCost:
    """Medians over the measured steps, in milliseconds."""

    engine_ms: float  # schedule, commit, the message to the front
    prepare_ms: float  # from the batch to the call of the kernels
    sample_ms: float  # from their return to the tokens

    def __str__(self) -> str:
        parts = f"engine {self.engine_ms:.3f}, input preparation {self.prepare_ms:.3f}, sampling {self.sample_ms:.3f}"
        return f"{self.total_ms:.3f} ms: {parts}"

    @property
    def total_ms(self) -> float:
        """Return all together."""
        return self.engine_ms + self.prepare_ms + self.sample_ms


class TimedKernels(Kernels):
    """The kernels of another object; notes when the last pass began and ended."""

    def __init__(self, kernels: Kernels) -> None:
        vars(self).update(vars(kernels))
        self.began_s = self.ended_s = 0.0

    def forward(self, model: abi.Model, batch: abi.Batch) -> None:
        """See `Kernels`."""
        self.began_s = time.thread_time()
        super().forward(model, batch)
        self.ended_s = time.thread_time()


class TimedExecutor:
    """Implements `ModelExecutor` with a model runner; notes when the last batch came and went."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self._batch: Batch | None = None  # the last one
        self.began_s = self.ended_s = 0.0

    @property
    def num_tokens(self) -> int:
        """Return how many tokens the last batch had."""
        return self._batch.num_tokens if self._batch is not None else 0

    def has_decoded(self, num_seqs: int) -> bool:
        """Return whether in the last batch so many sequences decoded, and nobody else was in it."""
        sequences = self._batch.sequences if self._batch is not None else ()
        return len(sequences) == num_seqs and all(each.num_known - each.start == 1 for each in sequences)

    def layer_windows(self) -> tuple[int | None, ...]:
        """See `ModelExecutor`."""
        return self._runner.cache.spec.windows

    def prepare_grammar(self, grammar: Grammar) -> Preparation:
        """See `ModelExecutor`."""
        del grammar
        return Prepared()

    def execute_model(self, batch: Batch) -> ModelOutput:
        """See `ModelExecutor`."""
        self._batch = batch
        self.began_s = time.thread_time()
        output = self._runner.execute(batch)
        self.ended_s = time.thread_time()
        return output


@dataclass(frozen=True, slots=True)
class Foreseen:
    """So many drafts for each sequence in each step, which are its answer."""

    num_drafts: int
    answers: Mapping[str, list[int]]

    def num_tokens_in(self, num_steps: int) -> int:
        """Return how many tokens come in so many steps, and in those before in which others' prompts are read."""
        return (num_steps + STEPS_OF_PROMPTS) * (1 + self.num_drafts)


@dataclass(frozen=True, slots=True)
class Bench:
    """An engine in whose next step every sequence decodes."""

    engine: Engine
    executor: TimedExecutor
    kernels: TimedKernels
    said: dict[str, list[int]]  # before these steps, by request

    def step(self) -> StepCost:
        """Make a step, and the message to the front; return its cost."""
        began_s = time.thread_time()
        outputs = self.engine.step()
        assert outputs is not None
        messages: list[EngineMessage] = [outputs]
        encode_frame(messages)
        ended_s = time.thread_time()
        executor, kernels = self.executor, self.kernels
        return StepCost(
            engine_ms=1e3 * (executor.began_s - began_s + ended_s - executor.ended_s),
            prepare_ms=1e3 * (kernels.began_s - executor.began_s),
            sample_ms=1e3 * (executor.ended_s - kernels.ended_s),
        )


def make_bench(
    model: Path,
    num_seqs: int,
    num_steps: int,
    *,
    prompt_tokens: int = PROMPT_TOKENS,
    sampling: dict[str, float],
    foreseen: Foreseen = Foreseen(0, MappingProxyType({})),
) -> Bench:
    """Return an engine that has read the prompts and has `num_steps` to go. Raises RuntimeError without kernels."""
    kernels = load_kernels()
    if isinstance(kernels, Missing):
        raise RuntimeError(kernels.reason)  # noqa: TRY004  not of a type, of this machine
    timed = TimedKernels(kernels)
    settings = EngineSettings(
        model=str(model),
        max_num_seqs=NUM_SEQS * (1 + foreseen.num_drafts),
        enable_prefix_caching=True,
        speculation_method="ngram" if foreseen.num_drafts else "off",
        num_speculative_tokens=max(1, foreseen.num_drafts),
    )
    executor = TimedExecutor(_make_runner(settings, timed))
    # while the last prompts are read, the first sequences decode already
    max_tokens = foreseen.num_tokens_in(num_steps) if foreseen.num_drafts else num_steps + num_seqs + 1
    num_blocks = num_seqs * -(-(prompt_tokens + max_tokens) // settings.block_size)
    longest = prompt_tokens + max_tokens + 1
    report = make_report(num_gpu_blocks=num_blocks, block_size=settings.block_size, max_model_len=longest)
    engine = build_engine(settings, report, (num_blocks + 1, 0), executor, clock=time.monotonic)
    if (speculation := engine._scheduler.speculation) is not None:  # noqa: SLF001  nobody else has a use for it
        speculation.costs = FreeRows(NUM_SEQS)
    said: dict[str, list[int]] = {}
    tokens = random.Random(7)
    for number in range(num_seqs):
        prompt = [tokens.randrange(250) for _ in range(prompt_tokens)]
        asked = make_add(str(number), prompt, max_tokens=max_tokens, **sampling)
        asked = msgspec.structs.replace(asked, prediction_token_ids=foreseen.answers.get(str(number), []))
        refusal = engine.add(asked)
        assert refusal is None, refusal
    while not executor.has_decoded(num_seqs):
        _hear(said, engine.step())
    return Bench(engine, executor, timed, said)


def _hear(said: dict[str, list[int]], outputs: StepOutputs | None) -> None:
    assert outputs is not None, "something runs"
    for output in outputs.outputs:
        said.setdefault(output.request_id, []).extend(output.token_ids)


def _make_runner(settings: EngineSettings, kernels: Kernels) -> ModelRunner:
    torch.set_num_threads(1)
    loaded = load(settings, CpuDevice(Host()))
    assert loaded.lean is not None, "the model is a Llama"
    model = replace(loaded, native=build_native(loaded.lean, loaded.cache_spec.layers, kernels))
    num_blocks = NUM_SEQS * -(-loaded.max_model_len // settings.block_size) // 4
    cache, host_cache = (KVCache(model.cache_spec, count, torch.device("cpu")) for count in (num_blocks, 0))
    return ModelRunner(model, cache, host_cache, NativeBackend(kernels=kernels), max_num_seqs=settings.max_num_seqs)


def measure_step_ms(
    model: Path | None = None,
    *,
    num_seqs: int = NUM_SEQS,
    num_steps: int = MEASURED_STEPS,
    prompt_tokens: int = PROMPT_TOKENS,
    sampling: dict[str, float] | None = None,
) -> StepCost:
    """Return what a decoding step costs outside the kernels; None = of the tiny model. Raises RuntimeError."""
    model = model or ensure_model("tiny", "bf16")
    bench = make_bench(model, num_seqs, num_steps, prompt_tokens=prompt_tokens, sampling=sampling or {})
    return _medians([bench.step() for _ in range(num_steps)])


def make_drafted_bench(num_drafts: int, num_seqs: int, num_steps: int) -> Bench:
    """Return the same of the tiny model, where in each step every sequence has so many drafts, all of them right."""
    model, num_tokens = ensure_model("tiny", "bf16"), Foreseen(num_drafts, {}).num_tokens_in(num_steps)
    plain = make_bench(model, num_seqs, num_tokens, sampling={})
    while (outputs := plain.engine.step()) is not None:
        _hear(plain.said, outputs)
    return make_bench(model, num_seqs, num_steps, sampling={}, foreseen=Foreseen(num_drafts, plain.said))


def measure_drafted_step_ms(num_drafts: int, *, num_seqs: int = NUM_SEQS, num_steps: int = DRAFTED_STEPS) -> StepCost:
    """Return what such a step costs outside the kernels. Raises RuntimeError."""
    bench, costs = make_drafted_bench(num_drafts, num_seqs, num_steps), []
    for _ in range(num_steps):
        costs.append(bench.step())
        assert bench.executor.num_tokens == num_seqs * (1 + num_drafts), "every sequence has all its drafts"
    return _medians(costs)


def _medians(costs: Sequence[StepCost]) -> StepCost:
    return StepCost(
        median(cost.engine_ms for cost in costs),
        median(cost.prepare_ms for cost in costs),
        median(cost.sample_ms for cost in costs),
    )


def main() -> None:
    """Print the costs, or a profile."""
    parser = argparse.ArgumentParser(prog="python -m bench.step_cost", description=__doc__)
    parser.add_argument("--profile", action="store_true", help="print the functions that cost most instead")
    parser.add_argument("--sequences", type=int, nargs="+", default=[NUM_SEQS, 1], help="how many decode")
    parser.add_argument("--random", action="store_true", help=f"sample with {RANDOM} instead of greedily")
    parser.add_argument(
        "--drafts", type=int, default=0, help="of each sequence in each step, all right; sampled greedily"
    )
    flags = parser.parse_args()
    sampling, num_steps = RANDOM if flags.random else {}, DRAFTED_STEPS if flags.drafts else MEASURED_STEPS
    for num_seqs in flags.sequences:
        if flags.drafts:
            bench = make_drafted_bench(flags.drafts, num_seqs, num_steps)
        else:
            bench = make_bench(ensure_model("tiny", "bf16"), num_seqs, num_steps, sampling=sampling)
        if not flags.profile:
            print(f"{num_seqs} sequences: {_medians([bench.step() for _ in range(num_steps)])}", flush=True)
            continue
        with cProfile.Profile(time.thread_time) as profile:
            for _ in range(num_steps):
                bench.step()
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
