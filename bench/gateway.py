"""What the gateway costs: beside a worker called directly, and while a thousand requests wait for a wake.

    overhead    1-token requests at 200 a second, turn about to the worker itself and through the gateway
    streaming   64 streams, paced: processor time per token message; then as fast as two cores let them
    held        1,000 requests arrive while a model wakes: answered, in order, one wake, memory

Overhead and streaming have one gateway, one worker (the front as it is over an engine that computes nothing) and one
client, each a process, all on two cores; Kubernetes is in memory. `held` has a real API server, operator and gateway
in namespaces of their own, so it must run as root; without root it says so and measures nothing.
The rows of faults that `make e2e-ladder` adds to the file stay as they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import msgspec
from rich.console import Console

from bench.front_cost import cpu_s
from bench.front_door import NAME, Door, open_door
from bench.gateway_figures import Flow, Latencies, held_rows, overhead_rows, streaming_rows
from bench.helpers import Helper, Job
from bench.ladder import enter
from bench.models import SHAPES, ensure_model
from bench.options import Options, main
from bench.replies import Reply, num_tokens, wall_s
from bench.results import Row
from bench.worker import Worker, ready_worker
from bench.workload import Request, make_workload

MODEL = "tiny"  # for its tokenizer
NUM_STREAMS, NUM_HELD = 64, 1000
RATE_PER_S = 200.0
TURN_REQUESTS, NUM_TURNS = 200, 20  # of each kind, for a repetition: a second each
PACED_TOKENS, PACED_STEP_S = 256, 0.02
FAST_TOKENS, FAST_STEP_S = 800, 0.002  # more than two cores can pass on
NUM_CORES = 2


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows of all parts. Raises SandboxError without root."""
    enter.check()
    streams = options.count or NUM_STREAMS
    with two_cores(), Helper("bench.client") as client:
        latencies = _overhead(client, options.reps, console)
        paced = _paced(client, streams, options.reps, console)
        direct, through = _fast(client, streams, options.reps, console)
    held = enter.held(options.count or NUM_HELD, options.reps, console)
    return [*overhead_rows(latencies), *streaming_rows(streams, paced, direct, through), *held_rows(held)]


@contextmanager
def two_cores() -> Iterator[None]:
    """Keep this process and all that it starts meanwhile on two cores."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:NUM_CORES])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@dataclass(frozen=True, slots=True)
class _Pair:
    """A worker, and a gateway before it."""

    client: Helper
    worker: Worker
    door: Door

    def direct(self, requests: Sequence[Request], rate_per_s: float = 0.0) -> list[Reply]:
        return self.client.run(Job(tuple(requests), port=self.worker.port, rate_per_s=rate_per_s))

    def through(self, requests: Sequence[Request], rate_per_s: float = 0.0) -> list[Reply]:
        name = f"default/{NAME}"
        return self.client.run(Job(tuple(requests), port=self.door.port, model=name, rate_per_s=rate_per_s))


@contextmanager
def _pair(client: Helper, step_s: float) -> Iterator[_Pair]:
    """A worker whose engine steps so often, and a gateway before it."""
    model = ensure_model(MODEL)
    with ExitStack() as stack:
        program = ("-m", "bench.stand_in", "--step-seconds", str(step_s))
        worker = stack.enter_context(ready_worker(model, program=program))
        yield _Pair(client, worker, stack.enter_context(open_door(model.name, worker.port)))


def _overhead(client: Helper, reps: int, console: Console) -> Latencies:
    """Ask turn about, a second each; the first turns warm up."""
    direct_ms: list[float] = []
    through_ms: list[float] = []
    with _pair(client, step_s=0.0) as pair:
        for turn in range(reps * NUM_TURNS // 3 + 1):
            requests = _requests(TURN_REQUESTS, max_tokens=1, rep=turn)
            direct, through = pair.direct(requests, RATE_PER_S), pair.through(requests, RATE_PER_S)
            if turn:
                direct_ms += _latencies_ms(direct)
                through_ms += _latencies_ms(through)
    found = Latencies(RATE_PER_S, direct_ms, through_ms)
    console.print(f"  {len(through_ms):,} requests each: {found}", highlight=False)
    return found


def _paced(client: Helper, streams: int, reps: int, console: Console) -> list[Flow]:
    """Stream at the pace of a real engine, through the gateway."""
    with _pair(client, PACED_STEP_S) as pair:
        flows = [_flow_through(pair, _requests(streams, PACED_TOKENS, rep)) for rep in range(reps + 1)]
    _say(console, "paced", flows)
    return flows[1:]


def _fast(client: Helper, streams: int, reps: int, console: Console) -> tuple[list[Flow], list[Flow]]:
    """Stream as fast as it goes, turn about to the worker itself and through the gateway."""
    direct, through = [], []
    with _pair(client, FAST_STEP_S) as pair:
        for rep in range(reps + 1):
            requests = _requests(streams, FAST_TOKENS, rep)
            direct.append(to_flow(pair.direct(requests)))
            through.append(_flow_through(pair, requests))
    _say(console, "direct", direct)
    _say(console, "through", through)
    return direct[1:], through[1:]


def _flow_through(pair: _Pair, requests: Sequence[Request]) -> Flow:
    before_s = cpu_s(pair.door.pid)
    replies = pair.through(requests)
    return to_flow(replies, cpu_s(pair.door.pid) - before_s)


def to_flow(replies: Sequence[Reply], spent_s: float = 0.0) -> Flow:
    """Return what all streams together brought."""
    return Flow(sum(reply.num_messages for reply in replies), num_tokens(replies), wall_s(replies), spent_s)


def _requests(count: int, max_tokens: int, rep: int) -> list[Request]:
    drawn = make_workload("W4", vocab_size=SHAPES[MODEL].vocab_size, rep=rep, count=count).requests
    return [msgspec.structs.replace(request, max_tokens=max_tokens) for request in drawn]


def _latencies_ms(replies: Sequence[Reply]) -> list[float]:
    return [1e3 * (reply.last_s - reply.submitted_s) for reply in replies]


def _say(console: Console, name: str, flows: Sequence[Flow]) -> None:
    for rep, flow in enumerate(flows):
        console.print(f"  {name}, {'warm-up' if rep == 0 else rep}: {flow}", highlight=False)


if __name__ == "__main__":
    main("gateway", __doc__, measure)
