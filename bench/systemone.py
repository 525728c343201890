"""Questions about one text, over HTTP: our worker behind a gateway beside vLLM's own server, both at /v1/systemone.

16 questions about a text of 2,000 words of one token each, new each time; both sides get the same bodies and render
them by the same chat template. vLLM is stopped while we are asked, and our worker rests by itself. Rows go into
tasks.json.
"""

from __future__ import annotations

import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

from rich.console import Console
from tokenizers import Tokenizer

from bench.front_door import NAME as DEPLOYMENT
from bench.front_door import open_door
from bench.helpers import environment
from bench.models import ensure_model
from bench.options import Options, main
from bench.peer_env import find_peer, peer_python, peer_variables
from bench.race import cores_of
from bench.results import RatioAtMost, Row
from bench.vllm_server import NAME as SERVED
from bench.vllm_server import VllmServer, arguments
from bench.worker import free_port, ready_worker

MODEL, DTYPE = "small-qwen3", "bfloat16"  # of texts alone vLLM asks Qwen3's models such questions
STATE_WORDS, NUM_QUESTIONS, QUESTION_WORDS = 2000, 16, 20
MAX_MODEL_LEN = 4096
GOAL = RatioAtMost(0.8)  # 1.25 times as fast
PATH = "/v1/systemone"
Body = dict[str, Any]
Ask = Callable[[Body], float]


def measure(options: Options, console: Console) -> list[Row]:
    """Return the row; none, which is said, where vLLM is not there or does not have the route."""
    if find_peer(console) is None:
        return []
    rng, words = random.Random(3), _words()
    with _sides(options) as sides:
        laps: list[dict[str, float]] = []
        for _ in range(options.reps + 1):
            body = _body(rng, words)
            laps.append({name: ask(body) for name, ask in sides.items()})
            console.print(f"  {laps[-1]}", highlight=False)
    seconds = {name: median(lap[name] for lap in laps[1:]) for name in laps[0]}
    what = f"{NUM_QUESTIONS} questions about a text of {STATE_WORDS} tokens at {PATH} beside vLLM's, {MODEL} bf16"
    return [Row(what, seconds["ours"], "s", seconds["vLLM"], GOAL)]


def _words() -> list[str]:
    """Return words that are one token each, with the blank before them."""
    vocabulary = Tokenizer.from_file(str(ensure_model(MODEL, "bf16") / "tokenizer.json")).get_vocab()
    return sorted(word[1:] for word in vocabulary if word[0] == "Ġ" and word[1:].isascii() and word[1:].isalpha())


def _body(rng: random.Random, words: list[str]) -> Body:
    def text(count: int) -> str:
        return " " + " ".join(rng.choices(words, k=count))

    asked = {f"q{number}": {"type": "noul", "instructions": text(QUESTION_WORDS)} for number in range(NUM_QUESTIONS)}
    return {"state": text(STATE_WORDS), "questions": asked}


@contextmanager
def _sides(options: Options) -> Iterator[Mapping[str, Ask]]:
    """Start both with the same model."""
    model, port = ensure_model(MODEL, "bf16"), free_port()
    variables = peer_variables(cores_of(options), environment(), own_process=True)
    with ExitStack() as stack:
        command = [str(peer_python()), *arguments(str(model), DTYPE, port, MAX_MODEL_LEN)]
        server = stack.enter_context(VllmServer(command, port, variables))
        server.wait_ready()
        server.stop()
        flags = ("--dtype", DTYPE, "--max-model-len", str(MAX_MODEL_LEN), "--threads", str(options.threads))
        worker = stack.enter_context(ready_worker(model, flags=flags))
        door = stack.enter_context(open_door(model.name, worker.port))

        def ask_ours(body: Body) -> float:
            return _seconds(door.http_port, f"default/{DEPLOYMENT}", body)

        def ask_vllm(body: Body) -> float:
            with server.turn():
                return _seconds(port, SERVED, body)

        yield {"ours": ask_ours, "vLLM": ask_vllm}


def _seconds(port: int, model: str, body: Body) -> float:
    """Return how long all answers take. Raises RuntimeError with the words of who refuses."""
    data = json.dumps({"model": model, **body}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{PATH}", data, {"Content-Type": "application/json"}, method="POST"
    )
    begun_s = time.perf_counter()
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            told = json.load(answer)
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{error.code}: {error.read()[:500]!r}") from error
    seconds = time.perf_counter() - begun_s
    if told["answers"].keys() != body["questions"].keys():
        raise RuntimeError(f"answers to {sorted(told['answers'])}")
    return seconds


if __name__ == "__main__":
    main("systemone", __doc__, measure)
