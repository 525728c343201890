"""The measuring program of `bench.switch`: `python -m bench.switch_probe MODEL_DIR COUNT` prints a JSON list.

Both workers live in this process, each with a row of its own in the books of the device that its environment names.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.sleep_probe import SETTINGS, copying
from bench.switch import Switch
from dormouse_worker.common.commands import TAGS, WEIGHTS
from dormouse_worker.common.host import release_free_memory
from dormouse_worker.executor.testing import generate, make_settings, start, touch_cache
from dormouse_worker.executor.worker.stand_in_worker import StandInWorker


def main() -> None:
    """Let the device change hands so often, after two changes to warm up."""
    model, count = Path(sys.argv[1]), int(sys.argv[2])
    awake = _start(model)
    awake.sleep(1, TAGS)
    asleep = _start(model)
    asleep.sleep(1, TAGS)
    awake.wake_up(TAGS)
    peer = copying(awake)
    switches = []
    for _ in range(count + 2):
        switches.append(_switch(awake, asleep, peer))
        awake, asleep = asleep, awake
    print(msgspec.json.encode(switches[2:]).decode())


def _start(model: Path) -> StandInWorker:
    worker = StandInWorker(make_settings(model, device="cuda", **SETTINGS), 0)
    worker.init_device()
    start(worker)
    return worker


def _switch(holder: StandInWorker, next_one: StandInWorker, peer: Callable[[], float]) -> Switch:
    generate(holder)
    touch_cache(holder)
    release_free_memory()
    peer_s = peer()
    started_s = time.perf_counter()
    holder.sleep(1, TAGS)
    slept_s = time.perf_counter()
    assert next_one.prepare_wake_up(TAGS) == 0, "there is room for one"
    phases = next_one.wake_up(TAGS).phases
    woke_s = time.perf_counter()
    report = next_one.get_memory_report()
    assert report is not None, "it was profiled"
    return Switch(
        report.weights_bytes,
        slept_s - started_s,
        phases[WEIGHTS],
        phases["verify"],
        woke_s - slept_s,
        peer_s,
    )


if __name__ == "__main__":
    main()
