"""What it is worth that a session's blocks outlive the engine: of the model `small`, with 4,000 tokens, in one process.

Engines with a store and without answer in turns; the median of the ratios counts. A gap is a sleep at level 2, or the
end of the engine and a new one over the same directory; the time is that from the request to its first token. Files
are in the page cache, as after a sleep; `dd` reads the same bytes from one file there. Writing behind is W1 with a cache
that the running requests fill, so that all that was computed makes room and is written: tokens per second of the
processor, all threads counted.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median

from rich.console import Console

from bench.limits import use_threads
from bench.models import SHAPES, ensure_model
from bench.options import Options, main
from bench.results import RatioAtLeast, RatioAtMost, Row
from bench.workload import Request, make_workload
from dormouse_worker.common.commands import Command, InitializeCache, Shutdown, Sleep, WakeUp
from dormouse_worker.common.host import Host
from dormouse_worker.common.ipc import AddRequest, CommandRequest, CommandResult, EngineMessage, Sampling, StepOutputs
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.controller import Controller
from dormouse_worker.engine.store_threads import CHUNK_BYTES
from dormouse_worker.executor.single_process import SingleProcessExecutor
from dormouse_worker.kv_store.file_store import FileBlockStore

MODEL, NUM_SEQS, MAX_TOKENS = "small", 64, 8
SESSION = [(7 * number) % 9973 for number in range(4000)]
SESSION_CACHE_BYTES, W1_CACHE_BYTES = 256 << 20, 448 << 20
STORE_BYTES = 4 << 30


@dataclass
class Side:
    """One engine, driven as its process drives it."""

    model: Path
    threads: int
    cache_bytes: int
    store: Path | None = None
    _sent: list[EngineMessage] = field(default_factory=list)
    _ids: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        settings = EngineSettings(
            model=str(self.model),
            max_num_seqs=NUM_SEQS,
            kv_cache_memory_bytes=self.cache_bytes,
            threads=self.threads,
            kv_store_dir=str(self.store or ""),
            kv_store_size_bytes=STORE_BYTES,
        )
        self.executor = SingleProcessExecutor(settings, {}, Host())
        self.controller = Controller(settings, self.executor, send=self._sent.append, clock=time.monotonic)
        self.controller.start()
        report = self.executor.get_memory_report()
        assert report is not None, self._sent[-1]
        self.run(InitializeCache(report.num_gpu_blocks))

    def run(self, *commands: Command) -> None:
        """Carry out commands."""
        for command in commands:
            self.controller.handle(CommandRequest(0, command))
            result = self._sent[-1]
            assert isinstance(result, CommandResult), result
            if result.error_reason:
                raise RuntimeError(result.error_message)

    def answer(self, requests: Sequence[Request]) -> tuple[float, list[int]]:
        """Answer all requests at once; return the seconds to the first token, and all tokens."""
        self._sent.clear()
        begun_s, first_s = time.perf_counter(), 0.0
        for request in requests:
            sampling = Sampling(0, 1, 0, 0, 0, request.max_tokens)
            self.controller.handle(AddRequest(str(next(self._ids)), list(request.prompt), sampling))
        while self.controller.has_work:
            self.controller.step()
            first_s = first_s or (time.perf_counter() - begun_s if self._tokens() else 0.0)
        tokens = self._tokens()
        assert len(tokens) == sum(request.max_tokens for request in requests), "all were answered to their ends"
        return first_s, tokens

    def speed(self, requests: Sequence[Request]) -> float:
        """Return the tokens per second of the processor."""
        begun_s = time.process_time()
        _, tokens = self.answer(requests)
        return len(tokens) / (time.process_time() - begun_s)

    def _tokens(self) -> list[int]:
        told = [output for sent in self._sent if isinstance(sent, StepOutputs) for output in sent.outputs]
        return [token for output in told for token in output.token_ids]


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    use_threads(options)
    model = ensure_model(MODEL, "bf16")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        rows = [*_gaps(options, console, model, root / "sessions")]
        rows.append(_beside_dd(options, console, model, root / "sessions"))
        rows.append(_behind(options, console, model, root / "w1"))
    return rows


def _gaps(options: Options, console: Console, model: Path, store: Path) -> Iterator[Row]:
    session = [Request("session", SESSION, MAX_TOKENS)]
    plain, kept = (
        Side(model, options.threads, SESSION_CACHE_BYTES),
        Side(model, options.threads, SESSION_CACHE_BYTES, store),
    )
    _, expected = plain.answer(session)
    kept.answer(session)
    laps = []
    for _ in range(options.reps):
        lap = []
        for side in (plain, kept):
            side.run(Sleep(2), WakeUp())
            seconds, tokens = side.answer(session)
            assert tokens == expected, "a session says the same after every gap"
            lap.append(seconds)
        console.print(f"  after level 2: {lap[0]:.3f} s computed, {lap[1]:.3f} s read", highlight=False)
        laps.append((lap[0], lap[1]))
    yield _row("TTFT of a session of 4,000 tokens after level 2, read beside computed", laps)
    kept.run(Shutdown())
    laps = []
    for _ in range(options.reps):
        plain.run(Sleep(2), WakeUp())
        computed_s, _ = plain.answer(session)
        fresh = Side(model, options.threads, SESSION_CACHE_BYTES, store)
        read_s, tokens = fresh.answer(session)
        assert tokens == expected, "another engine says the same"
        fresh.run(Shutdown())
        console.print(f"  a new engine: {computed_s:.3f} s computed, {read_s:.3f} s read", highlight=False)
        laps.append((computed_s, read_s))
    plain.run(Shutdown())
    yield _row("TTFT of a session of 4,000 tokens in a new engine, read beside computed", laps)


def _row(what: str, laps: list[tuple[float, float]]) -> Row:
    computed_s, read_s = sorted(laps, key=lambda lap: lap[1] / lap[0])[len(laps) // 2]
    return Row(what, read_s, "s", computed_s, RatioAtMost(0.15))


def _beside_dd(options: Options, console: Console, model: Path, root: Path) -> Row:
    """Compare reading every file of the store into a cache with `dd` of one file of the same bytes."""
    side = Side(model, options.threads, SESSION_CACHE_BYTES)
    cache = side.executor.stored_cache()
    store = FileBlockStore(root, cache.realm, STORE_BYTES)
    names = [bytes.fromhex(file.stem) for file in sorted((root / cache.realm.hex()).glob("*.kv"))]
    whole = root.parent / "whole"
    whole.write_bytes(b"".join((root / cache.realm.hex() / f"{name.hex()}.kv").read_bytes() for name in names))
    laps = []
    for _ in range(options.reps):
        begun_s = time.perf_counter()
        subprocess.run(["dd", f"if={whole}", "of=/dev/null", "bs=1M"], check=True, capture_output=True)
        dd_s = time.perf_counter() - begun_s
        begun_s = time.perf_counter()
        size = cache.block_bytes
        many = CHUNK_BYTES // size
        buffer = memoryview(bytearray(many * size))
        for start in range(0, len(names), many):
            part = names[start : start + many]
            for place, name in enumerate(part):
                assert store.read(name, buffer[place * size : (place + 1) * size]) is None, name
            cache.write_blocks(range(len(part)), buffer[: len(part) * size])
        laps.append((dd_s, time.perf_counter() - begun_s))
    mib = whole.stat().st_size / (1 << 20)
    console.print(f"  dd {mib / laps[-1][0]:.0f} MiB/s, restore {mib / laps[-1][1]:.0f} MiB/s", highlight=False)
    side.run(Shutdown())
    dd_s, restore_s = (median(lap[column] for lap in laps) for column in (0, 1))
    return Row(
        "restore beside dd of the same bytes in one file", mib / restore_s, "MiB/s", mib / dd_s, RatioAtLeast(0.8)
    )


def _behind(options: Options, console: Console, model: Path, store: Path) -> Row:
    plain, kept = (Side(model, options.threads, W1_CACHE_BYTES, where) for where in (None, store))
    laps = []
    for rep in range(options.reps + 1):
        workload = make_workload(
            "W1", vocab_size=SHAPES[MODEL].vocab_size, rep=rep, count=options.count or NUM_SEQS
        ).requests
        laps.append((plain.speed(workload), kept.speed(workload)))
        console.print(f"  W1: {laps[-1][0]:.0f}, {laps[-1][1]:.0f} written behind", highlight=False)
    for side in (plain, kept):
        side.run(Shutdown())
    num_files = len(list(store.glob("*/*.kv")))
    console.print(f"  {num_files} blocks were written", highlight=False)
    typical = sorted(laps[1:], key=lambda lap: lap[1] / lap[0])[(len(laps) - 1) // 2]
    return Row(
        "W1, small, written behind beside no store",
        typical[1],
        "output tokens / cpu second",
        typical[0],
        RatioAtLeast(0.98),
    )


if __name__ == "__main__":
    main("sessions", __doc__, measure)
