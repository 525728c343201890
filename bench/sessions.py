"""A session of 4,000 tokens over gaps, beside computing it anew; the store beside dd; what writing costs W1.

A worker computes the session, sleeps at level 2, wakes, and is asked for it again; then another process over the same
store, as after Zero and in a roll-out of the same model, is asked. What counts is the time from the request to its
first token, once the worker serves. The same tokens under another salt are found nowhere and computed.

Restoring is what the first token takes beyond one whose blocks are still in the cache, beside `dd` of as many bytes of
one file into memory; all files are in the page cache. W1 runs over gRPC beside a worker without a store, in turns, with
a cache that holds one and a half rounds of it, so that blocks go to the store all the time.
"""

from __future__ import annotations

import itertools
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console

from bench import hand_over
from bench.client import TIMEOUT_S, to_message
from bench.helpers import Helper, Job
from bench.models import SHAPES, ensure_model
from bench.options import Options, main
from bench.replies import tokens_per_s
from bench.results import PICTURES, RatioAtLeast, RatioAtMost, Row
from bench.sleep_picture import Bar, draw
from bench.worker import Worker, ready_worker
from bench.workload import Request, make_workload
from dormouse_api import testing_tickets
from dormouse_api.names import METADATA_CACHE_SALT, Role

MODEL = "small"
NUM_TOKENS, NUM_ANSWERED = 4000, 8
BLOCK_SIZE = 16
NUM_FOUND = (NUM_TOKENS - 1) // BLOCK_SIZE * BLOCK_SIZE  # the last token is always computed
W1_BLOCKS = 2560
DD_BYTES = 4 << 20  # of one read, as the store's chunks are
GAPS = ("after level 2", "in another process")
SECRET = {"DORMOUSE_KV_STORE_KEY": "a secret that is only measured with"}


@dataclass
class Laps:
    """The seconds to the first token, of every repetition."""

    computed_s: list[float] = field(default_factory=list)
    cached_s: list[float] = field(default_factory=list)
    restored_s: dict[str, list[float]] = field(default_factory=lambda: {gap: [] for gap in GAPS})


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    model = ensure_model(MODEL, "bf16")
    flags = ("--max-model-len", "4096", "--threads", str(options.threads))
    over_gaps = list(_over_gaps(model, options, console))
    handed_over = hand_over.measure(model, flags, options, console)
    if options.results_dir:
        ((options.out or PICTURES) / "session.svg").write_text(draw_night(over_gaps, handed_over[0]), "utf-8")
    return [*over_gaps, *handed_over, _beside_none(model, options, console)]


def draw_night(over_gaps: Sequence[Row], stall: Row) -> str:
    """Return a picture of what a session waits for at what a night brings, beside computing it."""
    asleep, elsewhere = over_gaps[: len(GAPS)]
    computed_s = asleep.peer
    assert computed_s is not None, "both are measured"
    waits = {
        "computed anew": computed_s,
        "asleep at level 2": asleep.ours,
        "from Zero, or a roll-out": elsewhere.ours,
        "drained in mid-stream": stall.ours,
    }
    bars = [Bar(title, {"first token": seconds}) for title, seconds in waits.items()]
    return draw(f"A session of {NUM_TOKENS:,} tokens over a night: until its next token, {MODEL} bf16", bars)


def _over_gaps(model: Path, options: Options, console: Console) -> Iterator[Row]:
    salts = (f"lap {number}" for number in itertools.count())
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        plain, sealed, store = Laps(), Laps(), Path(directory)
        for number in range(options.reps + 1):
            _lap(model, _flags(options, store / "plain"), {}, next(salts), plain if number else Laps())
            _lap(model, _flags(options, store / "sealed"), SECRET, next(salts), sealed if number else Laps())
        console.print(f"  {plain}\n  encrypted: {sealed}", highlight=False)
        yield from _beside_computing(plain, "")
        yield from _beside_computing(sealed, ", encrypted")
        yield _beside_dd(plain, _session_bytes(store / "plain", options.reps + 1), store)


def _beside_computing(laps: Laps, how: str) -> Iterator[Row]:
    for gap in GAPS:
        what = f"first token of a session of {NUM_TOKENS} tokens {gap}{how}, beside computing it, {MODEL} bf16"
        yield Row(what, median(laps.restored_s[gap]), "s", median(laps.computed_s), RatioAtMost(0.15))


def _lap(model: Path, flags: Sequence[str], variables: Mapping[str, str], salt: str, laps: Laps) -> None:
    """Have a session computed and found again; its salt is new."""
    with ready_worker(model, flags=flags, variables=variables) as worker:
        seconds, tokens = _ask(worker, salt, num_found=0)
        laps.computed_s.append(seconds)
        laps.cached_s.append(_ask(worker, salt, NUM_FOUND, tokens)[0])
        worker.sleep(2)
        worker.wake_up()
        laps.restored_s[GAPS[0]].append(_ask(worker, salt, NUM_FOUND, tokens)[0])
    with ready_worker(model, flags=flags, variables=variables) as worker:
        laps.restored_s[GAPS[1]].append(_ask(worker, salt, NUM_FOUND, tokens)[0])


def _flags(options: Options, store: Path) -> tuple[str, ...]:
    sizes = ("--max-model-len", "4096", "--threads", str(options.threads))
    return (*sizes, "--kv-store-dir", str(store), "--kv-store-size", "4Gi")


def _ask(worker: Worker, salt: str, num_found: int, tokens: Sequence[int] = ()) -> tuple[float, list[int]]:
    """Return the seconds to the first token, and all. Raises RuntimeError if it was found otherwise, or is another."""
    vocab_size = SHAPES[MODEL].vocab_size
    prompt = [3 + (7919 * number) % (vocab_size - 3) for number in range(NUM_TOKENS)]
    metadata = (*testing_tickets.proof(Role.GATEWAY), (METADATA_CACHE_SALT, salt))
    said: list[int] = []
    begun_s, first_s = time.monotonic(), 0.0
    message = to_message(Request("session", prompt, NUM_ANSWERED))
    for response in worker.inference.Generate(message, timeout=TIMEOUT_S, metadata=metadata):
        first_s = first_s or time.monotonic()
        said += response.token_ids
        cached = response.usage.cached_tokens
    if cached != num_found or (tokens and said != list(tokens)):
        raise RuntimeError(f"{cached} tokens were found, not {num_found}; it said {said} and before {tokens}")
    return first_s - begun_s, said


def _session_bytes(store: Path, num_sessions: int) -> int:
    """Return what one session takes in the store, in which so many lie."""
    return sum(file.stat().st_size for file in store.glob("*/*.kv")) // num_sessions


def _beside_dd(laps: Laps, num_bytes: int, directory: Path) -> Row:
    """Return the rates at which blocks come back, and at which dd copies."""
    restored_s = median(laps.restored_s[GAPS[0]]) - median(laps.cached_s)
    peer_s = median(_dd(directory / "whole", num_bytes) for _ in laps.cached_s)
    what = f"blocks of a session back in the cache, beside dd of {num_bytes >> 20} MiB"
    return Row(what, num_bytes / 1e9 / restored_s, "GB/s", num_bytes / 1e9 / peer_s, RatioAtLeast(0.8))


def _dd(file: Path, num_bytes: int) -> float:
    """Return the seconds in which dd copies a file of the page cache into memory."""
    file.write_bytes(bytes(num_bytes))
    begun_s = time.monotonic()
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as copy:
        subprocess.run(["dd", f"if={file}", f"of={copy.name}", f"bs={DD_BYTES}"], check=True, capture_output=True)
        return time.monotonic() - begun_s


def _beside_none(model: Path, options: Options, console: Console) -> Row:
    """Return W1's speed while blocks are written, beside that without a store."""
    threads = ("--threads", str(options.threads))
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as directory,
        Helper("bench.client") as client,
        ready_worker(model, flags=_flags(options, Path(directory)), max_blocks=W1_BLOCKS) as stored,
        ready_worker(model, flags=("--max-model-len", "4096", *threads), max_blocks=W1_BLOCKS) as plain,
    ):
        rounds = [_round(client, stored, plain, rep, options) for rep in range(options.reps + 2)][2:]
        console.print(f"  {rounds}", highlight=False)
    ours, peer = zip(*rounds, strict=True)
    return Row(f"W1 while blocks are written, {MODEL} bf16", median(ours), "tokens/s", median(peer), RatioAtLeast(0.98))


def _round(client: Helper, stored: Worker, plain: Worker, rep: int, options: Options) -> tuple[float, float]:
    requests = make_workload("W1", vocab_size=SHAPES[MODEL].vocab_size, rep=rep, count=options.count).requests
    order = (stored, plain) if rep % 2 else (plain, stored)
    speeds = {worker.port: tokens_per_s(client.run(Job(requests, port=worker.port))) for worker in order}
    return speeds[stored.port], speeds[plain.port]


if __name__ == "__main__":
    main("sessions", __doc__, measure)
