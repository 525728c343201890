"""Real workers killed under bound streams: `python -m bench.structured_kills --merge [--count KILLS --out FOLDER]`.

Two workers behind a gateway, random weights, which push against every grammar. 64 streams at a time, each bound by a
generated schema, once undisturbed and once while the engine of one worker and then of the other is killed (SIGKILL)
when a random number of tokens has come. Their fronts start others; the gateway has the streams go on. What comes has to
be what came undisturbed, and to validate where it ended. A run goes on behind the streams that stand in the results,
and adds to them, so that many kills may come in pieces.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

import grpc
from grpc import aio
from rich.console import Console

from bench.front_door import open_door
from bench.models import ensure_model
from bench.options import Options, main
from bench.results import AtLeast, AtMost, Row
from bench.structured import NUM_KILLED, NUM_KILLS
from bench.structured_cases import make_schema
from bench.structured_validity import MOST_TOKENS, is_valid
from bench.worker import Worker
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from dormouse_api.v1 import worker_control_pb2 as control

NAME, NUM_WORKERS = "tiny", 2
FLAGS = ("--served-model-name", NAME, "--memory-limit", "2Gi", "--max-num-seqs", "64", "--engine-restart-window", "0")
TIMEOUT_S = 300.0
WHAT = {
    "kills": f"kills of real workers' engines under {NUM_KILLED} bound streams at a time",
    "streams": "bound streams through a gateway whose workers were killed",
    "wrong": "bound streams whose workers were killed: lost or with other tokens",
    "invalid": "bound streams whose workers were killed: invalid",
    "moved": "bound streams whose workers were killed: moved",
}


@dataclass(slots=True)
class Answer:
    """One stream as its client got it."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    has_stopped: bool = False
    has_moved: bool = False
    error: str = ""


class Tended:
    """A worker whose engine is started again, and made ready, whenever it ends."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._is_over, self.is_ready = worker, Event(), Event()
        Thread(target=self._tend, daemon=True).start()

    def __repr__(self) -> str:
        return f"Tended({self._worker!r}, ready={self.is_ready.is_set()})"

    def kill(self) -> None:
        """Kill the engine: all of it, at once."""
        self.is_ready.clear()
        pid = self._worker.process.pid
        (engine, *_) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(engine), signal.SIGKILL)

    def leave(self) -> None:
        """Tend it no more."""
        self._is_over.set()

    def _tend(self) -> None:
        while not self._is_over.is_set():
            try:
                for status in self._worker.statuses():
                    if status.state == control.WORKER_STATE_PROFILED:
                        self._worker.initialize_cache(status.report)
                    if status.state == control.WORKER_STATE_READY:
                        self.is_ready.set()
            except grpc.RpcError:
                continue  # the watch has an end, and so has a call at the moment of a kill


@dataclass(slots=True)
class Tally:
    """What became of all streams so far."""

    kills: int = 0
    streams: int = 0
    wrong: int = 0
    invalid: int = 0
    moved: int = 0

    def rows(self) -> list[Row]:
        """Return what stands in the results."""
        return [
            Row(WHAT["kills"], self.kills, "kills", goal=AtLeast(NUM_KILLS)),
            Row(WHAT["streams"], self.streams, "streams"),
            Row(WHAT["wrong"], self.wrong, "streams", goal=AtMost(0)),
            Row(WHAT["invalid"], self.invalid, "streams", goal=AtMost(0)),
            Row(WHAT["moved"], self.moved, "streams"),
        ]


def measure(options: Options, console: Console) -> list[Row]:
    """Return how many streams were lost or said something else, and how many are invalid."""
    tally = read_tally(options.results_dir) if options.merge and options.results_dir else Tally()
    most = tally.kills + (options.count or NUM_KILLS)
    with _tended_workers(ensure_model("tiny", "bf16")) as (port, workers):
        asyncio.run(_campaign(port, workers, tally, most, console))
    return tally.rows()


def read_tally(results_dir: Path) -> Tally:
    """Return what former runs have found."""
    rows = json.loads((results_dir / "structured.json").read_text("utf-8"))["rows"]
    found = {row["what"]: int(row["ours"]) for row in rows}
    return Tally(**{field: found.get(what, 0) for field, what in WHAT.items()})


@contextmanager
def _tended_workers(model: Path) -> Iterator[tuple[int, Sequence[Tended]]]:
    with tempfile.TemporaryDirectory() as profiles, ExitStack() as stack:
        workers = [Worker(model, flags=(*FLAGS, "--profile-cache", profiles)) for _ in range(NUM_WORKERS)]
        for worker in workers:
            stack.callback(worker.close)
        tended = [Tended(worker) for worker in workers]
        for each in tended:
            stack.callback(each.leave)
            each.is_ready.wait(TIMEOUT_S)
        door = stack.enter_context(open_door(NAME, *(worker.port for worker in workers)))
        yield door.port, tended


async def _campaign(port: int, workers: Sequence[Tended], tally: Tally, most: int, console: Console) -> None:
    """Kill until there were so many kills. Changes the tally."""
    draw = random.Random(f"kills/{tally.streams}")
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: rpc.InferenceAsyncStub = rpc.InferenceStub(channel)
        while tally.kills < most:
            numbers = range(tally.streams, tally.streams + NUM_KILLED)
            whole = await _say(stub, numbers, {})
            num_tokens = sum(len(answer.tokens) for answer in whole)
            places = sorted(draw.sample(range(1, num_tokens), NUM_WORKERS))
            said = await _say(stub, numbers, dict(zip(places, draw.sample(workers, len(workers)), strict=True)))
            tally.kills, tally.streams = tally.kills + NUM_WORKERS, tally.streams + NUM_KILLED
            for number, answer, expected in zip(numbers, said, whole, strict=True):
                tally.moved += answer.has_moved
                tally.wrong += bool(answer.error or expected.error) or answer.tokens != expected.tokens
                tally.invalid += answer.has_stopped and not is_valid(answer.text, number)
            console.print(f"  {tally}", highlight=False)
            for worker in workers:
                await asyncio.to_thread(worker.is_ready.wait, TIMEOUT_S)


async def _say(stub: rpc.InferenceAsyncStub, numbers: Sequence[int], kills: dict[int, Tended]) -> list[Answer]:
    """Return the streams of these numbers; workers are killed when so many tokens have come to all together."""
    num_tokens = 0

    async def one(number: int, answer: Answer) -> None:
        nonlocal num_tokens
        try:
            async for message in stub.Generate(_request(number), timeout=TIMEOUT_S, wait_for_ready=True):
                answer.tokens += message.token_ids
                answer.text += message.text
                answer.has_stopped |= message.finish_reason == pb.FINISH_REASON_STOP
                answer.has_moved |= message.migrated
                num_tokens += len(message.token_ids)
                for place in [place for place in kills if place <= num_tokens]:
                    worker = kills.pop(place)
                    await asyncio.to_thread(worker.is_ready.wait, TIMEOUT_S)
                    worker.kill()
        except aio.AioRpcError as error:
            answer.error = f"{error.code().name}: {error.details()}"
            print(f"  stream {number}: {answer.error}", flush=True)

    answers = [Answer() for _ in numbers]
    await asyncio.gather(*(one(number, answer) for number, answer in zip(numbers, answers, strict=True)))
    return answers


def _request(number: int) -> pb.GenerateRequest:
    bound = pb.StructuredOutputs(json_schema=json.dumps(make_schema(number)), disable_any_whitespace=True)
    params = pb.SamplingParams(temperature=1, seed=number, max_tokens=MOST_TOKENS, structured_outputs=bound)
    return pb.GenerateRequest(model=NAME, token_ids=pb.TokenIds(ids=[7, number % 90 + 5]), sampling_params=params)


if __name__ == "__main__":
    main("structured", __doc__, measure)
