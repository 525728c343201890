"""Run benchmarks one after the other and print one table: `python -m bench [NAME…]`.

    throughput  W1 against transformers; the scheduler's cost per step
    latency     one request alone against transformers
    prefix      a shared prefix, cold and the second time
    startup     process start to first token
    serve       the front's cost per token message
    sleep       sleep and wake on the fake device; the residue; the profile's error
    gateway     the gateway's cost beside direct calls; 1,000 requests that arrive during one wake (as root)
    coldstart   wakes from both levels and from no pod at all, beyond the worker's own time (as root)
    groups      groups beside one worker: tokens, decode, a step's bytes, a rank that is killed

The operator is measured by `python -m bench.fleet`, which needs root.

A whole run writes bench/results/NAME.json; a shortened one (--models, --reps, --count, --threads) writes nothing
unless --out says where. Measure on a machine that does nothing else.
"""

from __future__ import annotations

from bench import coldstart, gateway, groups, latency, prefix, serve, sleep, startup, throughput
from bench.options import Measure, end_children_on_sigterm, make_console, make_parser, run, to_options
from bench.results import print_table

BENCHMARKS: dict[str, Measure] = {
    "throughput": throughput.measure,
    "latency": latency.measure,
    "prefix": prefix.measure,
    "startup": startup.measure,
    "serve": serve.measure,
    "sleep": sleep.measure,
    "gateway": gateway.measure,
    "coldstart": coldstart.measure,
    "groups": groups.measure,
}


def main() -> None:
    """Run the named benchmarks, by default all."""
    end_children_on_sigterm()
    parser = make_parser("bench", __doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run (default: all)")
    flags = parser.parse_args()
    for name in flags.names:
        if name not in BENCHMARKS:
            parser.error(f"NAME is {name!r}; known are {', '.join(BENCHMARKS)}")
    console, options = make_console(), to_options(flags)
    rows = [row for name in flags.names or BENCHMARKS for row in run(name, BENCHMARKS[name], options, console)]
    print_table(rows, console)


if __name__ == "__main__":
    main()
