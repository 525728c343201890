"""The most memory that the processes of a worker have had, beside vLLM's: same model, same cache. And what they hold.

A side starts, answers workload W1 and is asked for the peaks (VmHWM) of its processes, which are added up. Ours is the
whole worker, front and engine; vLLM runs in one process, its smallest way. Both have a cache of 1 GiB. Sleep is off.
What is held (VmRSS, each process's own sum) is of the smallest model, which answers one request and then sleeps.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from bench import neighbours
from bench.client import to_message
from bench.helpers import Helper, Job
from bench.models import ensure_model
from bench.options import Options, main
from bench.peer_env import KV_CACHE_GIB
from bench.race import requests_of, vllm_helper
from bench.results import AtMost, RatioAtMost, Row
from bench.startup import one_token
from bench.worker import ready_worker

WORKLOAD = "W1"
WAY = "bfloat16"
GOAL = RatioAtMost(0.6)
PEAK, HELD = (re.compile(rf"^{field}:\s+(\d+) kB$", re.MULTILINE) for field in ("VmHWM", "VmRSS"))
SMALLEST = "tiny"
HELD_GOALS_MIB = {"serving": 250, "asleep at level 2": 150, "asleep at level 3": 60}
SETTLED_S = 1.0  # after which helpers that end have ended


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    return [*_measure_held(options, console), *(_measure_model(name, options, console) for name in options.models)]


def _measure_held(options: Options, console: Console) -> list[Row]:
    held: list[float] = []
    with ready_worker(ensure_model(SMALLEST), flags=("--threads", str(options.threads))) as worker:
        for _ in worker.inference.Generate(to_message(one_token(SMALLEST))):
            pass
        for level in (None, 2, 3):
            if level is not None:
                worker.sleep(level)
            time.sleep(SETTLED_S)
            held.append(_sum_mib(worker.process.pid, HELD))
    console.print(f"  {SMALLEST}: {', '.join(f'{size:,.0f}' for size in held)} MiB held", highlight=False)
    return [
        Row(f"memory of all processes, {SMALLEST}, {state}", size, "MiB", goal=AtMost(goal))
        for size, (state, goal) in zip(held, HELD_GOALS_MIB.items(), strict=True)
    ]


def _measure_model(name: str, options: Options, console: Console) -> Row:
    ours = _ours_mib(name, options)
    peer = _vllm_mib(name, options, console) if "vllm" in options.peers else None
    console.print(
        f"  {name}: ours {ours:,.0f} MiB; vLLM {'–' if peer is None else f'{peer:,.0f} MiB'}", highlight=False
    )
    return Row(f"peak memory of all processes, {name} bf16", ours, "MiB", peer, None if peer is None else GOAL)


def _ours_mib(name: str, options: Options) -> float:
    flags = ("--threads", str(options.threads), "--kv-cache-memory", f"{KV_CACHE_GIB}Gi")
    with (
        Helper("bench.client") as client,
        ready_worker(ensure_model(name, "bf16"), flags=flags, max_blocks=None) as worker,
    ):
        client.run(_job(name, options, worker.port))
        return peak_mib(worker.process.pid)


def _vllm_mib(name: str, options: Options, console: Console) -> float | None:
    helper = vllm_helper(str(ensure_model(name, "bf16")), WAY, options, console)
    if helper is None:
        return None
    with helper:
        helper.run(_job(name, options))
        return peak_mib(helper.pid)


def _job(name: str, options: Options, port: int = 0) -> Job:
    return Job(requests_of(name, WORKLOAD, 0, options), port=port)


def peak_mib(pid: int, proc: Path = neighbours.PROC) -> float:
    """Return the sum of the peaks of a process and all below it that are there."""
    return _sum_mib(pid, PEAK, proc)


def _sum_mib(pid: int, field: re.Pattern[str], proc: Path = neighbours.PROC) -> float:
    return sum(_sizes_kib(pid, field, proc)) / 1024


def _sizes_kib(pid: int, field: re.Pattern[str], proc: Path) -> Iterator[int]:
    for one in neighbours.stats_below(pid, proc):
        try:
            found = field.search((proc / str(one) / "status").read_text("utf-8"))
        except OSError:  # it has ended
            continue
        if found:
            yield int(found[1])


if __name__ == "__main__":
    main("memory", __doc__, measure)
