"""Images beside vLLM's own server: `--parts vllm` of `multimodal`.

8 requests with one image each at once, 64 tokens each, over HTTP at OpenAI's route: decoding, processing, the encoder
and the tokens. Both sides read the same files and get the same bodies, new images each time. vLLM is stopped while our
worker is asked, behind a gateway; it rests by itself.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from statistics import median

from rich.console import Console

from bench.front_door import NAME as DEPLOYMENT
from bench.front_door import open_door
from bench.helpers import environment
from bench.multimodal_http import ask, pictures
from bench.multimodal_model import TILE_PIXELS, write_model
from bench.options import Options
from bench.peer_env import KV_CACHE_GIB, find_peer, peer_python, peer_variables
from bench.race import cores_of
from bench.results import RatioAtLeast, Row
from bench.vllm_server import NAME as SERVED
from bench.vllm_server import VllmServer, arguments
from bench.worker import free_port, ready_worker

NUM_REQUESTS, OUTPUT_TOKENS = 8, 64
DTYPE = "bfloat16"
GOAL = RatioAtLeast(1.25)
Ask = Callable[[Sequence[bytes]], float]


def measure(options: Options, console: Console) -> list[Row]:
    """Return the row; none, which is said, where vLLM is not there."""
    if find_peer(console) is None:
        return []
    count = options.count or NUM_REQUESTS
    files = pictures(TILE_PIXELS, TILE_PIXELS)
    with tempfile.TemporaryDirectory() as folder, _sides(Path(folder), options) as sides:
        laps: list[dict[str, float]] = []
        for _ in range(options.reps + 1):
            asked = [*islice(files, count)]
            laps.append({name: count * OUTPUT_TOKENS / side(asked) for name, side in sides.items()})
            told = ", ".join(f"{name} {rate:.1f}" for name, rate in laps[-1].items())
            console.print(f"  {told} output tokens/s", highlight=False)
    rates = {name: median(lap[name] for lap in laps[1:]) for name in laps[0]}
    what = f"{count} requests with an image over HTTP, {OUTPUT_TOKENS} tokens each, beside vLLM's server, {DTYPE}"
    return [Row(what, rates["ours"], "output tokens/s", rates["vLLM"], GOAL)]


@contextmanager
def _sides(folder: Path, options: Options) -> Iterator[Mapping[str, Ask]]:
    """Start both with the same model."""
    model, port = write_model(folder / "model"), free_port()
    variables = peer_variables(cores_of(options), environment(), own_process=True)
    flags = ("--dtype", DTYPE, "--threads", str(options.threads), "--kv-cache-memory", f"{KV_CACHE_GIB}Gi")
    with ExitStack() as stack:
        command = [str(peer_python()), *arguments(str(model), DTYPE, port)]
        server = stack.enter_context(VllmServer(command, port, variables))
        server.wait_ready()
        server.stop()
        worker = stack.enter_context(ready_worker(model, flags=flags))
        door = stack.enter_context(open_door(model.name, worker.port))

        def ask_ours(asked: Sequence[bytes]) -> float:
            return _seconds(door.http_port, f"default/{DEPLOYMENT}", asked)

        def ask_vllm(asked: Sequence[bytes]) -> float:
            with server.turn():
                return _seconds(port, SERVED, asked)

        yield {"ours": ask_ours, "vLLM": ask_vllm}


def _seconds(port: int, model: str, asked: Sequence[bytes]) -> float:
    """Return how long all answers take. Raises RuntimeError for one that has other than its tokens."""
    begun_s = time.perf_counter()
    with ThreadPoolExecutor(len(asked)) as clients:
        counts = [*clients.map(lambda picture: ask(port, model, picture, OUTPUT_TOKENS), asked)]
    seconds = time.perf_counter() - begun_s
    if set(counts) != {OUTPUT_TOKENS}:
        raise RuntimeError(f"answers of {counts} tokens; asked for were {OUTPUT_TOKENS}")
    return seconds
