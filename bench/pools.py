"""Many models on few GPUs: the arbiter of pools over two hours of calls in virtual time, beside its rivals.

Forty models share four slots, two places each; a few are called all the time, most seldom, all in bursts
(`pools_trace`). The same calls are replayed over the operator's arbiter with the default policy, over least recently
used (who was called longest ago leaves once its calls have ended), over the same where streams are parked as we park
them, and over a static partition (the four most popular have a slot each, the others none). A wake takes as long as
the weights need over the link, and what the orders add.

`pools.svg` beside the results draws five minutes of it: who had which slot.

A wait is the time until the first token; a call is lost when a gateway gives it up. Times are the simulator's own:
this machine's speed is in none of them. The defaults were chosen on other calls than these.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from bench.options import Options, main
from bench.pools_picture import Window, draw
from bench.pools_rivals import LeastRecentlyUsed, Ours, Static
from bench.pools_trace import Trace, busy_pair, make_trace
from bench.pools_world import GOOD_S, Arbiter, Outcome, World
from bench.results import AtLeast, AtMost, Row
from dormouse_operator.model.pools import PoolPolicy

SEED = 2  # the policy's defaults were chosen on 0 and 1
LOADS = (0.5, 1.0)  # calls a second, of all models together
DRAWN, WINDOW = 1.0, Window(3600.0, 3900.0)  # of these the picture, which begins in the middle of the trace
OURS = "ours"
RIVALS: dict[str, Arbiter] = {
    "LRU": LeastRecentlyUsed(),
    "LRU that parks": LeastRecentlyUsed(PoolPolicy().drain_s),
    "static": Static(),
}


def measure(options: Options, console: Console) -> list[Row]:
    """Replay the traces and return the rows; `--count` is the number of models."""
    num_models = options.count or 40
    rows: list[Row] = []
    for calls_per_s in LOADS:
        where = f"{num_models} models, {calls_per_s:g} calls/s"
        outcomes = _replay_all(make_trace(seed=SEED, num_models=num_models, calls_per_s=calls_per_s), console)
        rows += _shared(where, outcomes)
        if options.results_dir is not None and calls_per_s == DRAWN:
            (options.results_dir / "pools.svg").write_text(_picture(where, outcomes), "utf-8")
    return [*rows, *_pair(console)]


def _replay_all(trace: Trace, console: Console) -> dict[str, Outcome]:
    arbiters: dict[str, Arbiter] = {OURS: Ours(), **RIVALS}
    return {name: _replay(name, trace, arbiter, console) for name, arbiter in arbiters.items()}


def _shared(where: str, outcomes: Mapping[str, Outcome]) -> list[Row]:
    ours = outcomes[OURS]
    lost = Row(f"{where}: lost", ours.lost, "calls", goal=AtMost(0))
    beside = {f"{where}, beside {name}": outcome for name, outcome in outcomes.items() if name != OURS}
    return [lost, *(row for title, rival in beside.items() for row in _rows(title, ours, rival))]


def _picture(where: str, outcomes: Mapping[str, Outcome]) -> str:
    panels = {
        f"{name}: wait p99 {found.wait_s(99):.1f} s, {found.goodput:.1f} good calls a minute, {found.lost} lost": (
            found.stretches
        )
        for name, found in outcomes.items()
    }
    num_slots = outcomes[OURS].num_slots
    return draw(f"Who had which of {num_slots} slots: {where}, simulated", panels, num_slots, WINDOW)


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
    least = min(outcome.held_s(model) for model in (0, 1)) / outcome.seconds
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
