"""What the way over gRPC costs when the model computes: 64 streams, beside the same requests in process.

A worker and a client in processes of their own, every token a message, against the engine's own loop turned by its
caller (`ours`): both compute with the machine's cores, and front and client have to share them.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec
from rich.console import Console

from bench import neighbours
from bench.contest import describe
from bench.helpers import Helper, Job
from bench.models import SHAPES, ensure_model
from bench.options import Options
from bench.peer_env import KV_CACHE_GIB
from bench.replies import Reply, tokens_per_s
from bench.results import RatioAtLeast, Row
from bench.worker import ready_worker
from bench.workload import make_workload

MODEL = "small"
NUM_STREAMS = 64
OUTPUT_TOKENS = 64
GOAL = RatioAtLeast(0.9)
Laps = Sequence[Sequence[Reply]]


def measure_streams(options: Options, console: Console) -> list[Row]:
    """Return the row; none if the model is not asked for."""
    if MODEL not in options.models:
        return []
    model, threads = ensure_model(MODEL, "bf16"), str(options.threads)
    flags = ("--threads", threads, "--kv-cache-memory", f"{KV_CACHE_GIB}Gi")
    through: list[list[Reply]] = []
    inside: list[list[Reply]] = []
    with (
        Helper("bench.ours", str(model), threads, rests=True) as engine,
        Helper("bench.client") as client,
        ready_worker(model, flags=flags, max_blocks=None) as worker,
    ):
        for rep in range(options.reps + 1):
            job = _job(options.count or NUM_STREAMS, rep, worker.port)
            through.append(_lap(client, job, f"{rep or 'warm-up'}, over gRPC", console))
            inside.append(_lap(engine, job, f"{rep or 'warm-up'}, in process", console))
    return [to_row(through[1:], inside[1:])]


def to_row(through: Laps, inside: Laps) -> Row:
    """Return both sides' speed over the repetitions."""
    what = f"{len(through[0])} gRPC streams, {MODEL} bf16, beside the same in process"
    ours, peer = (median(map(tokens_per_s, laps)) for laps in (through, inside))
    return Row(what, ours, "output tokens/s", peer, GOAL)


def _job(streams: int, rep: int, port: int) -> Job:
    drawn = make_workload("W4", vocab_size=SHAPES[MODEL].vocab_size, rep=rep, count=streams).requests
    return Job(tuple(msgspec.structs.replace(one, max_tokens=OUTPUT_TOKENS) for one in drawn), port=port)


def _lap(side: Helper, job: Job, title: str, console: Console) -> list[Reply]:
    before = neighbours.read()
    replies = side.run(job)
    others = before.cores_of_others(neighbours.read())
    console.print(f"  streams {title}: {describe(replies)}; others took {others:.2f} cores", highlight=False)
    return replies
