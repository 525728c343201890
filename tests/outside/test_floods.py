"""Thousands of requests at once, two thirds of them hostile: honest ones get their tokens, nobody's process ends."""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import worker_control_pb2 as control
from tests.integration.conftest import Worker
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NUM_REQUESTS = 3000
NUM_CALLERS = 32
MAX_TOKENS = 12
HONEST_PROMPTS = [[(7 * i * i + 3 * i + n) % 250 for i in range(3 + 5 * n)] for n in range(6)]
REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNIMPLEMENTED,  # a chat with a model that has no template
    grpc.StatusCode.FAILED_PRECONDITION,
}
MAX_GROWTH_BYTES = 512 << 20  # of a front and its engine after the flood; its prompts together are some gigabytes
ODD_TEXTS = (
    "\x00",
    "\ufffd" * 40,
    "e\u0301" * 200,
    "\U0010ffff",
    "<s></s><|user|>",
    " " * 3000,
    "\u202e",
    "a" * 100_000,
)
HUGE_TEXT = "flood " * 170_000  # one megabyte

Make = Callable[[random.Random], pb.GenerateRequest]


def ask(prompt: Any, **sampling: Any) -> pb.GenerateRequest:
    """Return a request for token ids or a text."""
    params = pb.SamplingParams(**{"max_tokens": MAX_TOKENS, "temperature": 0, **sampling})
    if isinstance(prompt, str):
        return pb.GenerateRequest(text=prompt, sampling_params=params)
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt), sampling_params=params)


HOSTILE: dict[str, Make] = {
    "token ids that the model has no row for": lambda rng: ask([1, rng.choice([2**31 - 1, 100_000, 2**20])]),
    "no token at all": lambda _: ask([]),
    "more tokens than fit": lambda rng: ask([5] * rng.randrange(513, 20_000)),
    "a megabyte of text": lambda _: ask(HUGE_TEXT),
    "odd text": lambda rng: ask(rng.choice(ODD_TEXTS)),
    "bytes that never complete a character": lambda rng: ask(
        "x", n=rng.randrange(1, 9), temperature=1, seed=1, allowed_token_ids=[rng.randrange(5, 250)], max_tokens=200
    ),
    "impossible sampling": lambda rng: ask([5], **rng.choice(IMPOSSIBLE)),
    "stop strings": lambda rng: ask(
        "x", stop=["".join(rng.choices("abc \n", k=rng.randrange(1, 60))) for _ in range(4)]
    ),
    "all log-probabilities": lambda rng: ask([5] * 300, logprobs=rng.randrange(21), prompt_logprobs=rng.randrange(21)),
    "many choices": lambda rng: ask([5] * 100, n=rng.randrange(1, 200), temperature=1),
}
IMPOSSIBLE: list[dict[str, Any]] = [
    {"temperature": -1},
    {"temperature": float("nan")},
    {"top_p": 7},
    {"min_p": 2},
    {"max_tokens": 2**31 - 1},
    {"repetition_penalty": 0},
    {"allowed_token_ids": list(range(5000))},
    {"stop_token_ids": [2**31 - 1]},
    {"logit_bias": dict.fromkeys(range(2000), 100.0)},
]


class Flood:
    """Sends requests and counts how each kind ended."""

    def __init__(self, worker: Worker, seed: int) -> None:
        self._worker, self._seed = worker, seed
        self.expected = {n: worker.greedy(prompt, MAX_TOKENS) for n, prompt in enumerate(HONEST_PROMPTS)}
        self.ends: Counter[tuple[str, str]] = Counter()
        self.wrong: list[int] = []
        self.unexpected: list[str] = []

    def send(self, number: int) -> None:
        """Send one request, chosen by its number alone."""
        rng = random.Random(f"{self._seed}-{number}")
        if number % 3 == 0:
            honest = rng.randrange(len(HONEST_PROMPTS))
            tokens = [t for m in self._call(ask(HONEST_PROMPTS[honest]), 300) for t in m.token_ids]
            self.ends["honest", "OK"] += 1
            if tokens != self.expected[honest]:
                self.wrong.append(number)
            return
        kind = rng.choice(list(HOSTILE))
        call = self._call(HOSTILE[kind](rng), rng.choice([0.05, 2, 120]))
        self.ends[kind, self._end_of(call, leaves_early=rng.random() < 0.1)] += 1

    def _call(self, request: pb.GenerateRequest, timeout_s: float) -> Any:
        return self._worker.inference.Generate(request, timeout=timeout_s)

    def _end_of(self, call: Any, *, leaves_early: bool) -> str:
        try:
            for _ in call:
                if leaves_early:
                    call.cancel()
        except grpc.RpcError:
            return self._refusal(call.code(), call.details())
        return "OK"

    def _refusal(self, code: grpc.StatusCode, words: str) -> str:
        if code not in REFUSALS or not words:
            self.unexpected.append(f"{code}: {words}")
        return str(code.name)


def children_of(pid: int) -> list[int]:
    """Return a process's children."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]


def resident_bytes(pid: int) -> int:
    """Return what a process and its children hold."""
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(map(resident_bytes, children_of(pid)))


def running(worker: Worker) -> float:
    """Return how many requests the worker still has, by its metrics."""
    found = re.findall(r"^vllm:num_requests_(?:running|waiting)\S* ([\d.e+]+)$", worker.page(), re.MULTILINE)
    return sum(map(float, found))


def test_a_flood_of_hostile_requests_takes_nothing_from_honest_ones(start_worker, tiny_model, seed):
    worker = start_worker(tiny_model, "--max-waiting-requests", "512")
    worker.start()
    flood = Flood(worker, seed)
    pids, before_bytes = children_of(worker.process.pid), resident_bytes(worker.process.pid)
    with ThreadPoolExecutor(NUM_CALLERS) as callers:
        list(callers.map(flood.send, range(NUM_REQUESTS)))
    print(*(f"{kind}: {end} {count}" for (kind, end), count in sorted(flood.ends.items())), sep="\n")
    assert (flood.wrong, flood.unexpected) == ([], [])
    assert children_of(worker.process.pid) == pids, "the engine ended"
    asyncio.run(until(lambda: running(worker) == 0))
    assert worker.status().state == control.WORKER_STATE_READY
    assert resident_bytes(worker.process.pid) - before_bytes < MAX_GROWTH_BYTES
    assert {n: worker.greedy(prompt, MAX_TOKENS) for n, prompt in enumerate(HONEST_PROMPTS)} == flood.expected
