"""One large model from its cold start to its last wake, each figure beside the limit that the device itself sets."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.results import AtMost, RatioAtLeast, Row
from dormouse_worker.common.commands import TAGS, WEIGHTS
from dormouse_worker.executor.worker.rank_worker import RankWorker
from dormouse_worker.executor.worker.recording import Recording
from dormouse_worker.model.stopwatch import Stopwatch
from tests.gpu.bench_steps import decode_ahead_step_s, decode_step_s, prefill_s, short_prompt_s
from tests.gpu.device_kit import GIB, MIB, Kit
from tests.gpu.large_model import LLAMA_8B, TINY, Shape, write_large_model
from tests.gpu.limits import Limits, measure_limits
from tests.gpu.shares import PROGRAM

BLOCK_SIZE, ELEMENT_BYTES = 16, 2
SLEEP_S_PER_16_GB, COLD_START_S, FIRST_TOKEN_S, RESIDUE_GIB = 0.1, 12, 0.15, 1.0
H2D_SHARES = {1: 0.9, 2: 0.6}  # of a wake, by level
DECODE_SHARE = 0.8  # at batch 1


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    shape: Shape
    batch_sizes: tuple[int, ...]
    context: int  # tokens of a decoding sequence
    prompt: int  # tokens of the prefill
    cache_bytes: int


GPU_PLAN = Plan(LLAMA_8B, (1, 2, 4, 8, 16, 32, 64, 128, 256), 512, 8192, 20 * GIB)
FAKE_PLAN = Plan(TINY, (1, 2), 64, 128, 4 * MIB)


def run(kit: Kit) -> Iterator[Row]:
    """Measure everything. The device is not touched by this process before the cold start."""
    age_s = process_age_s()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(PROGRAM), "large-model", folder]
        subprocess.run(command, check=True)  # in a process of its own, which leaves this one's start cold
        yield from measure(kit, GPU_PLAN if kit.is_gpu else FAKE_PLAN, Path(folder), age_s)


def measure(kit: Kit, plan: Plan, directory: Path, age_s: float) -> Iterator[Row]:
    """Yield each part's rows once it is measured; `age_s` is what this process took before it could begin."""
    worker, cold_s = _cold_start(kit, plan, directory)
    try:
        yield from _cold_rows({"interpreter and imports": age_s, **cold_s})
        yield from _graph_rows(worker.recording)
        limits = measure_limits(kit)
        kit.tidy()
        yield from _limit_rows(limits)
        for level in H2D_SHARES:
            yield from _nap_rows(_nap(worker, level), limits)
        for what, step_s in (("decode", decode_step_s), ("decode ahead", decode_ahead_step_s)):
            seconds = {n: step_s(worker, n, plan.context, BLOCK_SIZE) for n in plan.batch_sizes}
            yield from _decode_rows(what, plan, limits, seconds)
        yield _prefill_row(plan, limits, prefill_s(worker, plan.prompt, BLOCK_SIZE))
    finally:
        worker.shutdown()


def be_model_writer(directory: str) -> int:
    """Be the process that writes the model, on the GPU if there is one."""
    has_gpu = torch.cuda.is_available()
    plan = GPU_PLAN if has_gpu else FAKE_PLAN
    write_large_model(Path(directory), plan.shape, torch.device("cuda" if has_gpu else "cpu"))
    return 0


def process_age_s() -> float:
    """Return how long this process exists."""
    after_name = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    started_ticks = int(after_name[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")


def _cold_start(kit: Kit, plan: Plan, directory: Path) -> tuple[RankWorker, dict[str, float]]:
    """Start a worker; return it and the seconds of each phase up to the first token."""
    watch = Stopwatch()
    with watch.phase("device"):
        worker = kit.make_worker(
            directory,
            block_size=BLOCK_SIZE,
            max_num_seqs=plan.batch_sizes[-1],
            max_num_batched_tokens=plan.prompt,
            kv_cache_memory_bytes=plan.cache_bytes,
        )
    with watch.phase("weights"):
        worker.load_model()
    with watch.phase("profile"):
        blocks = worker.determine_num_available_blocks()
    with watch.phase("cache, graphs, golden tokens"):
        worker.initialize_cache(*blocks)
    with watch.phase("first token"):
        short_prompt_s(worker, BLOCK_SIZE)
    return worker, dict(watch.phases)


@dataclass(frozen=True)
class Nap:
    """One sleep and its wake."""

    level: int
    weights_bytes: int
    residual_bytes: int
    sleep_s: float
    wake_s: float
    weights_s: float  # of the wake
    first_token_s: float  # after the wake


def _nap(worker: RankWorker, level: int) -> Nap:
    report = worker.get_memory_report()
    assert report is not None
    started_s = time.perf_counter()
    slept = worker.sleep(level, TAGS)
    asleep_s = time.perf_counter()
    woken = worker.wake_up(TAGS)
    awake_s = time.perf_counter()
    return Nap(
        level=level,
        weights_bytes=report.weights_bytes,
        residual_bytes=slept.residual_bytes,
        sleep_s=asleep_s - started_s,
        wake_s=awake_s - asleep_s,
        weights_s=woken.phases[WEIGHTS],
        first_token_s=short_prompt_s(worker, BLOCK_SIZE),
    )


def _limit_rows(limits: Limits) -> Iterator[Row]:
    yield Row("limit: copy on the device, read and written", limits.memory_bytes / 1e9, "GB/s")
    yield Row("limit: matrix product, bf16", limits.flops / 1e12, "TFLOP/s")
    yield Row("limit: pinned host memory to the device", limits.host_copy_bytes / 1e9, "GB/s")


def _cold_rows(phases_s: dict[str, float]) -> Iterator[Row]:
    yield Row("cold start to the first token", sum(phases_s.values()), "s", goal=AtMost(COLD_START_S))
    for name, seconds in phases_s.items():
        yield Row(f"of it: {name}", seconds, "s")


def _graph_rows(recording: Recording | None) -> Iterator[Row]:
    if recording is not None:  # None where the backend cannot be recorded
        yield Row(f"recording of {recording.num_graphs} graphs", recording.seconds, "s")
        yield Row("memory of the graphs", recording.num_bytes / MIB, "MiB")


def _decode_rows(what: str, plan: Plan, limits: Limits, decode_s: dict[int, float]) -> Iterator[Row]:
    """The limit reads all matrices once and every context once, as fast as the device copies."""
    for num_seqs, step_s in decode_s.items():
        elements = plan.shape.matrix_elements + num_seqs * plan.context * plan.shape.kv_elements
        limit_s = ELEMENT_BYTES * elements / limits.memory_bytes
        goal = RatioAtLeast(DECODE_SHARE) if num_seqs == 1 else None
        yield Row(f"{what}, batch {num_seqs}", num_seqs / step_s, "tokens/s", num_seqs / limit_s, goal)


def _prefill_row(plan: Plan, limits: Limits, prompt_s: float) -> Row:
    limit_s = plan.shape.prefill_flops(plan.prompt) / limits.flops
    return Row(f"prefill of {plan.prompt} tokens", plan.prompt / prompt_s, "tokens/s", plan.prompt / limit_s)


def _nap_rows(nap: Nap, limits: Limits) -> Iterator[Row]:
    level, num_bytes = f"level {nap.level}", nap.weights_bytes
    least_s, rate = num_bytes / limits.host_copy_bytes, limits.host_copy_bytes / 1e9
    if nap.level == 1:
        yield Row(f"sleep, {level}", nap.sleep_s, "s", goal=AtMost(SLEEP_S_PER_16_GB * max(1, num_bytes / 16e9)))
    else:
        yield Row(f"sleep, {level}", nap.sleep_s, "s")
    goal = RatioAtLeast(H2D_SHARES[nap.level])
    yield Row(f"wake, {level}: weights", num_bytes / nap.weights_s / 1e9, "GB/s", rate, goal)
    yield Row(f"wake, {level}, verified", nap.wake_s, "s", least_s)
    if nap.level == 1:
        first_s = nap.wake_s + nap.first_token_s
        yield Row("first token after that wake", first_s, "s", least_s, AtMost(least_s + FIRST_TOKEN_S))
    yield Row(f"residue, {level}", nap.residual_bytes / GIB, "GiB", goal=AtMost(RESIDUE_GIB))
