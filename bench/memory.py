"""The most memory that the processes of a worker have had, beside vLLM's: same model, same cache.

A side starts, answers workload W1 and is asked for the peaks (VmHWM) of its processes, which are added up. Ours is the
whole worker, front and engine; vLLM runs in one process, its smallest way. Both have a cache of 1 GiB. Sleep is off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from bench import neighbours
from bench.helpers import Helper, Job
from bench.models import ensure_model
from bench.options import Options, main
from bench.peer_env import KV_CACHE_GIB
from bench.race import requests_of, vllm_helper
from bench.results import RatioAtMost, Row
from bench.worker import ready_worker

WORKLOAD = "W1"
WAY = "bfloat16"
GOAL = RatioAtMost(0.6)
PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    return [_measure_model(name, options, console) for name in options.models]


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
    return sum(_peaks_kib(pid, proc)) / 1024


def _peaks_kib(pid: int, proc: Path) -> Iterator[int]:
    for one in neighbours.stats_below(pid, proc):
        try:
            found = PEAK.search((proc / str(one) / "status").read_text("utf-8"))
        except OSError:  # it has ended
            continue
        if found:
            yield int(found[1])


if __name__ == "__main__":
    main("memory", __doc__, measure)
