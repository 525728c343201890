"""What the front costs per token message: 64 streams at 50 tokens/s each from an engine that computes nothing.

The processor time of the front's process, all threads (user and system, from /proc), divided by the messages that the
client got. The engine and the client are processes of their own. Each message brings one token as long as the front
keeps up; when it does not, messages grow, and the row that says so rises above 1.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec
from rich.console import Console

from bench.helpers import Helper, Job
from bench.models import SHAPES, ensure_model
from bench.options import Options
from bench.replies import Reply, num_tokens, wall_s
from bench.results import AtMost, Row
from bench.worker import ready_worker
from bench.workload import make_workload

MODEL = "tiny"  # for its tokenizer
NUM_STREAMS = 64
OUTPUT_TOKENS = 512
PROGRAM = ("-m", "bench.stand_in")


@dataclass(frozen=True, slots=True)
class Cost:
    """One repetition."""

    cpu_s: float
    wall_s: float
    num_messages: int
    num_tokens: int

    def __str__(self) -> str:
        share = f"{100 * self.cpu_s / self.wall_s:.0f} % of a core"
        return f"{self.us_per_message:.1f} µs per message, {self.num_messages / self.wall_s:,.0f} messages/s, {share}"

    @property
    def us_per_message(self) -> float:
        """Return the processor time per message."""
        return 1e6 * self.cpu_s / self.num_messages


def measure_front(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    streams = options.count or NUM_STREAMS
    with (
        Helper("bench.client") as client,
        ready_worker(ensure_model(MODEL), program=PROGRAM) as worker,
    ):
        costs = []
        for rep in range(options.reps + 1):
            costs.append(_measure_once(client, worker.process.pid, _job(streams, rep, worker.port)))
            console.print(f"  {'warm-up' if rep == 0 else rep}: {costs[-1]}", highlight=False)
    return to_rows(costs[1:], streams)


def to_rows(costs: list[Cost], streams: int) -> list[Row]:
    """Return the rows of the repetitions."""
    front = f"front, stand-in engine, {streams} streams"
    tokens_per_message = median(cost.num_tokens / cost.num_messages for cost in costs)
    return [
        Row(f"{front}: CPU per token message", median(cost.us_per_message for cost in costs), "µs", goal=AtMost(60)),
        Row(f"{front}: tokens in a message", tokens_per_message, "tokens"),
    ]


def parse_cpu_ticks(stat: str) -> int:
    """Return user and system time from the text of /proc/PID/stat; the name in it may hold anything."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def cpu_s(pid: int) -> float:
    """Return the processor time of a process so far, ended threads included."""
    return parse_cpu_ticks(Path(f"/proc/{pid}/stat").read_text()) / os.sysconf("SC_CLK_TCK")


def _job(streams: int, rep: int, port: int) -> Job:
    requests = make_workload("W4", vocab_size=SHAPES[MODEL].vocab_size, rep=rep, count=streams).requests
    longer = (msgspec.structs.replace(request, max_tokens=OUTPUT_TOKENS) for request in requests)
    return Job(tuple(longer), port=port)


def _measure_once(client: Helper, pid: int, job: Job) -> Cost:
    before_s = cpu_s(pid)
    replies: list[Reply] = client.run(job)
    spent_s = cpu_s(pid) - before_s
    return Cost(spent_s, wall_s(replies), sum(reply.num_messages for reply in replies), num_tokens(replies))
