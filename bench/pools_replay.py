"""The calls of `bench.pools` replayed over the operator as it is, beside its simulator and beside starts from zero.

The whole operator runs in virtual time (`bench.replay`): watches, work list, passes over pool and members, orders. In
memory are the API server, the kubelet, the gateway and the workers, whose wakes take what the trace says; the API
server's and the network's time is in them (`pools_trace.ORDERS_S`). Waits are compared with the simulator's of the same
calls on the same places: that knows the arbiter alone, and loses no time between its decisions.

Beside it are the four most called models with a GPU each, and the same GPUs where a model that has none starts from no
pod at all (COLD_S and its weights from a disk) once another has been idle.

`--count` is how many seconds of the trace are replayed. The rows stand in pools.json beside those of `bench.pools`.
"""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from bench.options import Options, main
from bench.pools import SEED, describe
from bench.pools_rivals import LeastRecentlyUsed, Ours, Static
from bench.pools_trace import LINK_GB_PER_S, ORDERS_S, TWO_HOURS_S, Trace, busy_pair, make_trace
from bench.pools_world import GOOD_S, Outcome, World
from bench.replay.town import replay
from bench.results import AtLeast, AtMost, RatioAtLeast, RatioAtMost, Row

COLD_S = 20.0  # a pod, its image, Python and an engine process, before it reads weights
DISK_GB_PER_S = 2.0


def measure(options: Options, console: Console) -> list[Row]:
    """Replay and return the rows."""
    seconds = float(options.count or TWO_HOURS_S)
    trace = first_seconds(make_trace(seed=SEED), seconds)
    return [*_shared(trace, console), *_pair(first_seconds(busy_pair(), seconds), console)]


def first_seconds(trace: Trace, seconds: float) -> Trace:
    """Return the beginning of a trace."""
    return replace(trace, seconds=seconds, calls=tuple(call for call in trace.calls if call.at_s < seconds))


def cold(trace: Trace) -> Trace:
    """Return the trace with models that start from no pod where they had been asleep."""
    models = (replace(model, wake_s=_cold_s(model.wake_s)) for model in trace.models)
    return replace(trace, models=tuple(models))


def _cold_s(wake_s: float) -> float:
    return COLD_S + (wake_s - ORDERS_S) * LINK_GB_PER_S / DISK_GB_PER_S


def _shared(trace: Trace, console: Console) -> list[Row]:
    found = replay(trace)
    ours, bound = found.outcome, World(found.trace, Ours()).run()
    static = World(found.trace, Static()).run()
    zero = World(cold(found.trace), LeastRecentlyUsed()).run()
    for name, outcome in (("operator", ours), ("simulator", bound), ("static", static), ("from zero", zero)):
        console.print(f"{name}: {describe(outcome)}", style="dim")
    hours = f"{trace.seconds / 3600:g} h of {len(trace.models)} models on {trace.num_slots} slots, 1 call/s"
    where = f"replayed over the operator, {hours}"
    good = f"first token within {GOOD_S:g} s"
    return [
        Row(f"{where}: lost", ours.lost, "calls", goal=AtMost(0)),
        Row(f"{where}: wait p50; peer: the simulator", ours.wait_s(50), "s", bound.wait_s(50)),
        Row(f"{where}: wait p99; peer: the simulator", ours.wait_s(99), "s", bound.wait_s(99), RatioAtMost(1.2)),
        Row(f"{where}: share of time switching; peer: the simulator", ours.switching_share, "", bound.switching_share),
        Row(f"{where}: {good}; peer: 4 static models", ours.goodput, "calls/min", static.goodput, RatioAtLeast(5)),
        Row(f"{where}: {good}; peer: starts from zero", ours.goodput, "calls/min", zero.goodput, RatioAtLeast(5)),
        Row(
            f"{where}: {good}, had each call a GPU; peer: 4 static models", _offered(trace), "calls/min", static.goodput
        ),
        Row(f"{where}: awake on one slot at a time", found.most_awake, "workers", goal=AtMost(1)),
    ]


def _offered(trace: Trace) -> float:
    """Return how many calls come a minute: no arbiter can have more of them answered in time."""
    return 60.0 * len(trace.calls) / trace.seconds


def _pair(trace: Trace, console: Console) -> list[Row]:
    found = replay(trace)
    outcome = found.outcome
    console.print(f"two always busy: {describe(outcome)}", style="dim")
    where = "replayed over the operator, two always busy on one slot"
    return [
        Row(f"{where}: the smaller share of time", _least(outcome), "", goal=AtLeast(0.4)),
        Row(f"{where}: share of time switching", outcome.switching_share, "", goal=AtMost(0.1)),
        Row(f"{where}: lost", outcome.lost, "calls", goal=AtMost(0)),
        Row(f"{where}: wait p99", outcome.wait_s(99), "s"),
    ]


def _least(outcome: Outcome) -> float:
    return min(outcome.held_s(model) for model in (0, 1)) / outcome.seconds


if __name__ == "__main__":
    main("pools", __doc__, measure)
