"""How long a request waits for a model that sleeps, beyond what the worker itself needs; and one night as a picture.

    level 1, level 2   request at the gateway to first token, less the worker's own wake
    Zero               pod ready to first held request forwarded, 1, 5 and 25 deployments at a time
    night              requests, held ones, replicas and state over a night of a minute: coldstart.svg

A real API server, operator and gateway in namespaces of their own (so it must run as root); the nodes are KWOK's and
the workers stand-ins with the real protocol, which take a known time to listen, load and wake. `pod ready` is when the
worker itself says that it takes requests: no later than its pod's condition. The stand-in's first token comes at once.
--count is the number of wakes from each level.
"""

from __future__ import annotations

from rich.console import Console

from bench.ladder import enter
from bench.ladder.findings import coldstart_rows
from bench.night_picture import draw
from bench.options import Options, main
from bench.results import Row

NUM_WAKES = 60
TITLE = "A night in {seconds:.0f} s: level 1 after 3 s without a request, level 2 after 7 s, no pod after 14 s"


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows; draw the night beside them."""
    enter.check()
    found = enter.coldstarts(options.count or NUM_WAKES, console)
    if options.results_dir is not None:
        options.results_dir.mkdir(parents=True, exist_ok=True)
        title = TITLE.format(seconds=found.night[-1].at_s)
        (options.results_dir / "coldstart.svg").write_text(draw(title, found.night), "utf-8")
    return coldstart_rows(found)


if __name__ == "__main__":
    main("coldstart", __doc__, measure)
