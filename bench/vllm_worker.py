"""What our front costs before vLLM's engine: a vLLM worker beside vLLM's own server, W1 of the small shape.

It is the same vLLM. Both keep 64 requests under way and send the next as soon as one is answered; every token is a
message with its text. They take turns: vLLM's server is stopped while the worker is asked, and the worker rests by
itself. Then the conformance kit asks the worker: every rule that it claims should be kept. Rows go into platform.json.
--parts race or kit measures one of the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

from rich.console import Console

from bench.helpers import Helper, environment
from bench.models import SHAPES, ensure_model
from bench.options import Options, main
from bench.peer_env import KV_CACHE_GIB, find_peer, peer_python, peer_variables
from bench.race import cores_of
from bench.results import AtLeast, RatioAtLeast, Row
from bench.serve_client import Ask, Lap
from bench.serve_race import Ours, Peer, Side
from bench.vllm_server import VllmServer, arguments
from bench.worker import Worker, free_port, ready_worker
from bench.workload import make_workload
from dormouse_conformance.run import Outcome
from tests.conformance.kit import findings, target

PARTS = ("race", "kit")
MODEL, DTYPE = "small", "bfloat16"
UNDER_WAY = 64
GOAL = RatioAtLeast(0.95)
PATIENCE_S = 240.0  # vLLM starts anew for some rules
KIT_FLAGS = ("--max-model-len", "512", "--memory-limit", "2Gi", "--dtype", "float32")


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows; none, which is said, where vLLM is not there."""
    if find_peer(console) is None:
        return []
    wanted = options.parts or PARTS
    rows = _race(options, console) if "race" in wanted else []
    return [*rows, _kept(options)] if "kit" in wanted else rows


def _race(options: Options, console: Console) -> list[Row]:
    laps: dict[str, list[float]] = {"worker": [], "server": []}
    with _sides(options) as (client, sides):
        for rep in range(options.reps + 1):
            for name, side in sides.items():
                with side.turn():
                    lap = client.ask(_ask(side, rep, options), Lap)
                told = lap.figures["output_throughput"]
                console.print(f"  {name} {rep or 'warm-up'}: {told:,.0f} tokens/s", highlight=False)
                laps[name] += [told] if rep else []
    what = f"vLLM worker beside vLLM's server, W1 {MODEL}, {UNDER_WAY} under way"
    return [Row(what, median(laps["worker"]), "tokens/s", median(laps["server"]), GOAL)]


@contextmanager
def _sides(options: Options) -> Iterator[tuple[Helper, dict[str, Side]]]:
    """Start client, server and worker with the same model."""
    model, port = ensure_model(MODEL, "bf16"), free_port()
    variables = peer_variables(cores_of(options), environment(), own_process=True)
    flags = ("--dtype", DTYPE, "--kv-cache-memory", f"{KV_CACHE_GIB}Gi", *_runtime())
    with ExitStack() as stack:
        client = stack.enter_context(Helper("bench.serve_client"))
        command = [str(peer_python()), *arguments(str(model), DTYPE, port)]
        server = stack.enter_context(VllmServer(command, port, variables))
        server.wait_ready()
        server.stop()
        worker = stack.enter_context(ready_worker(model, flags=flags, max_blocks=None, variables=_variables(options)))
        yield client, {"server": Peer(server), "worker": Ours(worker.port)}


def _ask(side: Side, rep: int, options: Options) -> Ask:
    count = 1 + (options.count or UNDER_WAY)
    warm_up, *requests = make_workload("W1", vocab_size=SHAPES[MODEL].vocab_size, rep=rep, count=count).requests
    return Ask(side.kind, side.port, warm_up, tuple(requests), (0.0,) * len(requests), UNDER_WAY, {})


def _kept(options: Options) -> Row:
    worker = Worker(ensure_model("tiny"), flags=(*KIT_FLAGS, *_runtime()), variables=_variables(options))
    try:
        found = findings(target(worker.port, worker.control_port, PATIENCE_S))
    finally:
        worker.close()
    claimed = [one for one in found if one.outcome is not Outcome.NOT_CLAIMED]
    kept = sum(one.outcome is Outcome.PASSED for one in claimed)
    what = "conformance kit: rules kept by a vLLM worker, of those that it claims"
    return Row(what, float(kept), f"of {len(claimed)}", goal=AtLeast(len(claimed)))


def _runtime() -> tuple[str, ...]:
    return ("--runtime", "vllm", "--engine-python", str(peer_python()))


def _variables(options: Options) -> dict[str, str]:
    """Return what vLLM's server has, but for what the worker says itself."""
    said = peer_variables(cores_of(options), {})
    return {name: text for name, text in said.items() if name != "VLLM_CPU_KVCACHE_SPACE"}


if __name__ == "__main__":
    main("vllm_worker", __doc__, measure)
