"""A stream that moves between two workers of one node over one store, beside one whose prefix is computed there.

One worker answers a prompt of 4,000 tokens and is told to give up what it runs after the sixteenth token; the other
goes on from there. The stall is the time from the last token of the one to the first of the other: the leaving worker
writes what it has in it. Beside it the other worker goes on under a salt of which nothing is stored; what counts is the
time from the request on. The same again with a directory for each: the blocks come over the network.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console

from bench.client import TIMEOUT_S, to_message
from bench.models import SHAPES
from bench.options import Options
from bench.results import RatioAtMost, Row
from bench.worker import Worker, ready_worker
from bench.workload import Request
from dormouse_api import testing_tickets
from dormouse_api.names import METADATA_CACHE_SALT, Role
from dormouse_api.v1 import inference_pb2 as pb

MODEL = "small"
NUM_TOKENS, NUM_ANSWERED, NUM_BEFORE = 4000, 80, 16


@dataclass
class Part:
    """What one worker said of a stream, and when."""

    token_ids: list[int] = field(default_factory=list)
    begun_s: float = field(default_factory=time.monotonic)
    first_s: float = 0.0
    last_s: float = 0.0

    def take(self, response: pb.GenerateResponse) -> None:
        """Add a message."""
        if response.token_ids:
            self.last_s = time.monotonic()
            self.first_s = self.first_s or self.last_s
            self.token_ids += response.token_ids


def measure(model: Path, flags: Sequence[str], options: Options, console: Console) -> list[Row]:
    """Return the rows; `flags` name no store. Raises RuntimeError where the two say other tokens."""
    rows = []
    for names, way in ((("both", "both"), "on one node"), (("one", "other"), "by network")):
        salts = (f"stream {number}" for number in itertools.count())
        with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
            here, there = (
                (*flags, "--kv-store-dir", f"{directory}/{name}", "--kv-store-size", "4Gi") for name in names
            )
            with ready_worker(model, flags=here) as source, ready_worker(model, flags=there) as target:
                laps = [_lap(source, target, salts) for _ in range(options.reps + 1)][1:]
        console.print(f"  {way}: {laps}", highlight=False)
        stalls_s, computed_s = zip(*laps, strict=True)
        what = f"stall of a stream of {NUM_TOKENS} tokens handed over {way}, beside computing it, {MODEL} bf16"
        rows.append(Row(what, median(stalls_s), "s", median(computed_s), RatioAtMost(0.2)))
    return rows


def _lap(source: Worker, target: Worker, salts: Iterator[str]) -> tuple[float, float]:
    salt, other_salt = next(salts), next(salts)
    here = _begin(source, salt)
    there = _go_on(target, salt, here.token_ids, source)
    computed = _go_on(target, other_salt, here.token_ids)
    if there.token_ids != computed.token_ids:
        raise RuntimeError(f"it went on with {there.token_ids}; computed it is {computed.token_ids}")
    return there.first_s - here.last_s, computed.first_s - computed.begun_s


def _begin(worker: Worker, salt: str) -> Part:
    """Return what the worker said before it gave the stream up."""
    part, gives_up = Part(), threading.Thread(target=worker.give_up)
    for response in worker.inference.Generate(_message(), timeout=TIMEOUT_S, metadata=_metadata(salt)):
        part.take(response)
        if len(part.token_ids) >= NUM_BEFORE and gives_up.ident is None:
            gives_up.start()
    gives_up.join()
    if len(part.token_ids) >= NUM_ANSWERED:
        raise RuntimeError("the stream had ended before it was given up")
    return part


def _go_on(worker: Worker, salt: str, said: Sequence[int], source: Worker | None = None) -> Part:
    """Return the rest as the worker says it, which is told that the other one had the stream."""
    message = _message()
    message.resume.CopyFrom(pb.Resume(output_token_ids=said))
    if source is not None:
        tickets = [str(value) for _, value in testing_tickets.introduction()]
        message.resume.kv_source.CopyFrom(pb.KvSource(address=f"127.0.0.1:{source.port}", tickets=tickets))
    part = Part()
    for response in worker.inference.Generate(message, timeout=TIMEOUT_S, metadata=_metadata(salt)):
        part.take(response)
    return part


def _message() -> pb.GenerateRequest:
    vocab_size = SHAPES[MODEL].vocab_size
    prompt = [3 + (7919 * number) % (vocab_size - 3) for number in range(NUM_TOKENS)]
    return to_message(Request("stream", prompt, NUM_ANSWERED))


def _metadata(salt: str) -> tuple[tuple[str, str | bytes], ...]:
    return (*testing_tickets.proof(Role.GATEWAY), (METADATA_CACHE_SALT, salt))
