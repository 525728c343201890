"""Many models on few GPUs: the arbiter of pools over two hours of calls in virtual time, beside its rivals.

Forty models share four slots, two places each; a few are called all the time, most seldom, all in bursts
(`pools_trace`). The same calls are replayed over the operator's arbiter with the default policy, over least recently
used (who was called longest ago leaves once its calls have ended), over the same where streams are parked as we park
them, and over a static partition (the four most popular have a slot each, the others none). A wake takes as long as
the weights need over the link, and what the orders add.

A wait is the time until the first token; a call is lost when a gateway gives it up. Times are the simulator's own:
this machine's speed is in none of them. The defaults were chosen on other calls than these.
"""

from __future__ import annotations

from rich.console import Console

from bench.options import Options, main
from bench.pools_rivals import LeastRecentlyUsed, Ours, Static
from bench.pools_trace import Trace, busy_pair, make_trace
from bench.pools_world import GOOD_S, Arbiter, Outcome, World
from bench.results import AtLeast, AtMost, Row
from dormouse_operator.model.pools import PoolPolicy

SEED = 2  # the policy's defaults were chosen on 0 and 1
LOADS = (0.5, 1.0)  # calls a second, of all models together
RIVALS: dict[str, Arbiter] = {
    "LRU": LeastRecentlyUsed(),
    "LRU that parks": LeastRecentlyUsed(PoolPolicy().drain_s),
    "static": Static(),
}


def measure(options: Options, console: Console) -> list[Row]:
    """Replay the traces and return the rows; `--count` is the number of models."""
    rows: list[Row] = []
    for calls_per_s in LOADS:
        rows += _shared(options.count or 40, calls_per_s, console)
    return [*rows, *_pair(console)]


def _shared(num_models: int, calls_per_s: float, console: Console) -> list[Row]:
    trace = make_trace(seed=SEED, num_models=num_models, calls_per_s=calls_per_s)
    ours = _replay("ours", trace, Ours(), console)
    rivals = {name: _replay(name, trace, arbiter, console) for name, arbiter in RIVALS.items()}
    where = f"{num_models} models, {calls_per_s:g} calls/s"
    lost = Row(f"{where}: lost", ours.lost, "calls", goal=AtMost(0))
    return [lost, *(row for name, rival in rivals.items() for row in _rows(f"{where}, beside {name}", ours, rival))]


def _replay(name: str, trace: Trace, arbiter: Arbiter, console: Console) -> Outcome:
    outcome = World(trace, arbiter).run()
    console.print(f"{name}: {describe(outcome)}", style="dim")
    return outcome


def _rows(where: str, ours: Outcome, rival: Outcome) -> list[Row]:
    return [
        Row(f"{where}: lost", ours.lost, "calls", peer=rival.lost),
        Row(f"{where}: wait p50", ours.wait_s(50), "s", peer=rival.wait_s(50)),
        Row(f"{where}: wait p99", ours.wait_s(99), "s", peer=rival.wait_s(99)),
        Row(f"{where}: first token within {GOOD_S:g} s", ours.goodput, "calls/min", peer=rival.goodput),
        Row(f"{where}: share of time switching", ours.switching_share, "", peer=rival.switching_share),
        Row(f"{where}: streams that paused for a switch", ours.parked, "calls", peer=rival.parked),
    ]


def _pair(console: Console) -> list[Row]:
    """Return how two models that are always busy share one slot."""
    outcome = _replay("two always busy", busy_pair(), Ours(), console)
    least = min(outcome.held_s[number] for number in (0, 1)) / outcome.seconds
    return [
        Row("two always busy on one slot: the smaller share of time", least, "", goal=AtLeast(0.4)),
        Row("two always busy on one slot: share of time switching", outcome.switching_share, "", goal=AtMost(0.1)),
        Row("two always busy on one slot: wait p99", outcome.wait_s(99), "s"),
    ]


def describe(outcome: Outcome) -> str:
    """Return an outcome in one line."""
    waits = f"wait p50 {outcome.wait_s(50):.2f} s, p99 {outcome.wait_s(99):.1f} s"
    good = f"{outcome.goodput:.1f} good calls a minute"
    switching = (
        f"{outcome.switching_share:.1%} of the time switching, {outcome.switches} switches, {outcome.parked} parked"
    )
    return f"{outcome.num_calls} calls, {outcome.lost} lost, {waits}, {good}, {switching}"


if __name__ == "__main__":
    main("pools", __doc__, measure)
