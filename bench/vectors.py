"""Vectors of a whole worker behind a gateway, over HTTP; an encoder of MiniLM's shape with random weights, in float32.

Throughput: 64 clients with one text of 16 to 256 tokens each at a time, beside the engine alone with all at once.
A short query: 16 tokens, one after the other, alone and while four clients keep 64 texts of 256 tokens each under way,
which have a lower priority. Start: from the process to the first vector. Texts are sent as token ids.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

import aiohttp
from rich.console import Console

from bench.front_door import NAME, Door, open_door
from bench.limits import use_threads
from bench.models import ensure_model
from bench.options import Options, main
from bench.results import AtMost, RatioAtLeast, RatioAtMost, Row
from bench.tasks import ENCODERS, LONGEST, SHORTEST, VOCAB_SIZE, Side, write_encoder
from bench.worker import Worker, ready_worker
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.task_messages import AddPooling

SHAPE = "MiniLM"
NUM_CLIENTS, NUM_TEXTS = 64, 256
NUM_QUERIES, QUERY_TOKENS = 200, 16
NUM_BULK_CLIENTS, BULK_TEXTS, BULK_PRIORITY = 4, 64, 100
Text = list[int]


def measure(options: Options, console: Console) -> list[Row]:
    """Return the rows."""
    use_threads(options)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        write_encoder(model, *ENCODERS[SHAPE])
        (model / "tokenizer.json").write_bytes((ensure_model("tiny") / "tokenizer.json").read_bytes())
        alone = median(_in_process(model, options) for _ in range(2))
        with _served(model, options) as door:
            rows = asyncio.run(_over_http(door, alone, options, console))
        return [*rows, _start(model, options)]


def _texts(count: int, shortest: int, longest: int, seed: int) -> list[Text]:
    rng = random.Random(seed)
    return [
        [rng.randrange(1000, VOCAB_SIZE) for _ in range(length)]
        for length in (rng.randint(shortest, longest) for _ in range(count))
    ]


def _flags(options: Options) -> tuple[str, ...]:
    return ("--task", "embed", "--dtype", "float32", "--max-model-len", "512", "--threads", str(options.threads))


def _in_process(model: Path, options: Options) -> float:
    """Return the texts per second of the engine alone."""
    settings = EngineSettings(model=str(model), dtype="float32", task="embed", threads=options.threads)
    side, texts = Side(settings), _texts(options.count or NUM_TEXTS, SHORTEST, LONGEST, 1)
    return max(len(texts) / side.seconds(AddPooling(str(rep), texts)) for rep in range(options.reps + 1))


@contextmanager
def _served(model: Path, options: Options) -> Iterator[Door]:
    with ready_worker(model, flags=_flags(options)) as worker, open_door(model.name, worker.port) as door:
        yield door


async def _over_http(door: Door, alone: float, options: Options, console: Console) -> list[Row]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{door.http_port}", connector=connector) as session:
        speed = max([await _throughput(session, options) for _ in range(options.reps + 1)])
        idle_ms = await _queries(session)
        bulk = [asyncio.create_task(_keep_asking(session, number)) for number in range(NUM_BULK_CLIENTS)]
        await asyncio.sleep(1)
        busy_ms = await _queries(session)
        for each in bulk:
            each.cancel()
        await asyncio.gather(*bulk, return_exceptions=True)
    told = f"short queries, median: {median(idle_ms):.1f} ms alone, {median(busy_ms):.1f} ms beside bulk work"
    console.print(f"  {speed:.1f} texts/s, {alone:.1f} in process; {told}", highlight=False)
    what = f"{SHAPE}-shaped, float32"
    return [
        Row(
            f"vectors over HTTP, {NUM_CLIENTS} clients, beside the engine alone, {what}",
            speed,
            "texts/s",
            alone,
            RatioAtLeast(0.85),
        ),
        Row(
            f"a query of {QUERY_TOKENS} tokens beside bulk work of lower priority, and alone, p99, {what}",
            _p99(busy_ms),
            "ms",
            _p99(idle_ms),
            RatioAtMost(3),
        ),
    ]


def _p99(times_ms: Sequence[float]) -> float:
    return quantiles(times_ms, n=100, method="inclusive")[98]


async def _ask(session: aiohttp.ClientSession, texts: list[Text], priority: int = 0) -> float:
    """Return the milliseconds until the vectors are there."""
    body = {"model": f"default/{NAME}", "input": texts, "encoding_format": "base64", "priority": priority}
    begun_s = time.perf_counter()
    async with session.post("/v1/embeddings", json=body) as response:
        answer = await response.json()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {answer}")
        assert len(answer["data"]) == len(texts)
    return 1000 * (time.perf_counter() - begun_s)


async def _throughput(session: aiohttp.ClientSession, options: Options) -> float:
    texts = _texts(options.count or NUM_TEXTS, SHORTEST, LONGEST, 1)
    left = iter(texts)

    async def client() -> None:
        for text in left:
            await _ask(session, [text])

    begun_s = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(NUM_CLIENTS)))
    return len(texts) / (time.perf_counter() - begun_s)


async def _queries(session: aiohttp.ClientSession) -> list[float]:
    texts = _texts(NUM_QUERIES, QUERY_TOKENS, QUERY_TOKENS, 2)
    return [await _ask(session, [text]) for text in texts]


async def _keep_asking(session: aiohttp.ClientSession, number: int) -> None:
    texts = _texts(BULK_TEXTS, LONGEST, LONGEST, 3 + number)
    while True:
        await _ask(session, texts, BULK_PRIORITY)


def _start(model: Path, options: Options) -> Row:
    """Return how long a worker takes from its process to its first vector; files and code were read before."""
    return Row(
        f"process start to first vector, {SHAPE}-shaped",
        median(_seconds_to_first(model, options) for _ in range(options.reps)),
        "s",
        goal=AtMost(3),
    )


def _seconds_to_first(model: Path, options: Options) -> float:
    begun_s = time.perf_counter()
    worker = Worker(model, flags=_flags(options))
    try:
        worker.open()
        worker.inference.Embed(pb.EmbedRequest(inputs=[pb.EmbedInput(token_ids=pb.TokenIds(ids=[1000, 1001]))]))
        return time.perf_counter() - begun_s
    finally:
        worker.close()


if __name__ == "__main__":
    main("vectors", __doc__, measure)
