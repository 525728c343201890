"""How soon a worker serves again after its engine was killed, and after STANDBY: with a spare engine beside without.

The time is from the SIGKILL, or from the order to wake, to the first token of a request, the agreement on blocks
included. The spare has imported everything by then: it waits until it takes no more of the processor. As in pods, the
worker remembers what its first engine profiled.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from rich.console import Console

from bench.client import to_message
from bench.models import ensure_model
from bench.options import Options, main
from bench.results import AtMost, Row
from bench.startup import one_token
from bench.worker import Worker, ready_worker
from dormouse_api.v1 import inference_pb2 as pb

QUIET_S = 1.0  # without any work: it waits
MIB = 1 << 20


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    return [row for name in options.models for row in _measure_model(name, options, console)]


def _measure_model(name: str, options: Options, console: Console) -> list[Row]:
    model = ensure_model(name, "bf16")
    message = to_message(one_token(name))
    kills: dict[bool, list[float]] = {True: [], False: []}
    wakes: dict[bool, list[float]] = {True: [], False: []}
    spare_bytes = 0
    for _ in range(options.reps):
        for has_spare in (True, False):
            with _worker(model, options, has_spare=has_spare) as worker:
                spare_bytes = _settled(worker, has_spare=has_spare) or spare_bytes
                os.kill(_engines(worker)[0], signal.SIGKILL)
                kills[has_spare].append(_until_token(worker, message))
                _settled(worker, has_spare=has_spare)
                worker.sleep(3)
                wakes[has_spare].append(_until_token(worker, message, worker.wake_up))
            console.print(f"  {name}, spare {has_spare}: {kills[has_spare][-1]:.2f} s, {wakes[has_spare][-1]:.2f} s")
    return [
        Row(
            f"SIGKILL of the engine → first token, {name}", median(kills[True]), "s", median(kills[False]), AtMost(1.5)
        ),
        Row(f"wake from STANDBY → first token, {name}", median(wakes[True]), "s", median(wakes[False])),
        Row(f"host memory of a spare that waits, {name}", spare_bytes / MIB, "MiB"),
    ]


@contextmanager
def _worker(model: Path, options: Options, *, has_spare: bool) -> Iterator[Worker]:
    """A worker that serves."""
    with tempfile.TemporaryDirectory() as profiles:
        flags = ("--threads", str(options.threads), "--profile-cache", profiles, *(["--spare-engine"] * has_spare))
        with ready_worker(model, flags=flags) as worker:
            yield worker


def _until_token(worker: Worker, message: pb.GenerateRequest, begin: Callable[[], object] = lambda: None) -> float:
    """Begin, agree with the engine that comes, ask for a token; return the seconds."""
    began_s = time.monotonic()
    begin()
    worker.open()
    for _ in worker.inference.Generate(message):
        break
    return time.monotonic() - began_s


def _engines(worker: Worker) -> list[int]:
    """Return the engine and the spare, in the order of their start."""
    children = Path(f"/proc/{worker.process.pid}/task/{worker.process.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"engine_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def _settled(worker: Worker, *, has_spare: bool) -> int:
    """Wait until the spare has nothing more to do; return the bytes of memory that are its own."""
    while has_spare and len(_engines(worker)) < 2:
        time.sleep(0.05)
    pid, before = _engines(worker)[-1], -1
    while (now := _processor_ticks(pid)) != before:
        before = now
        time.sleep(QUIET_S)
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    private = [int(line.split()[1]) << 10 for line in lines if line.startswith("Private_")]
    return sum(private) if has_spare else 0


def _processor_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


if __name__ == "__main__":
    main("spare", __doc__, measure)
