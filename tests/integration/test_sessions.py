"""A session outlives its worker: real processes over one directory; tokens equal, and its blocks were read."""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

from dormouse_api.names import METADATA_CACHE_SALT, Role
from dormouse_api.testing_tickets import proof
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_worker.model.testing import write_tiny_model
from tests.integration.test_sleep import sleep, wake
from tests.waiting import wait_for

MAX_LEN = 4608
SESSION = [3 + (7 * number) % 89 for number in range(4000)]
NUM_BLOCKS = 4000 // 16 - 1  # the last token is always computed
KNOWN = 16 * NUM_BLOCKS


class Answer(NamedTuple):
    """What a stream said, and how much of the prompt was known."""

    tokens: list[int]
    cached: int


def ask(worker, salt=""):
    params = pb.SamplingParams(temperature=0, max_tokens=8)
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=SESSION), sampling_params=params)
    metadata = (*proof(Role.GATEWAY), (METADATA_CACHE_SALT, salt)) if salt else ()
    messages = list(worker.inference.Generate(request, timeout=60, metadata=metadata))
    return Answer([token for each in messages for token in each.token_ids], messages[-1].usage.cached_tokens)


def counted(worker, name):
    """Return the sum of a counter of the store."""
    lines = worker.page().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"dormouse_kv_store_{name}"))


def test_a_session_is_found_after_every_gap_and_by_nobody_else(start_worker, tmp_path):
    """One test, as each step begins where the last one ended: a worker's start takes seconds."""
    model = write_tiny_model(tmp_path / "model", max_position_embeddings=MAX_LEN)
    flags = ["--max-model-len", str(MAX_LEN), "--max-num-batched-tokens", "512"]
    flags += ["--kv-store-dir", str(tmp_path / "kv"), "--kv-store-size", "256Mi"]
    worker = start_worker(model, *flags)
    worker.start()
    first = ask(worker)
    assert first.cached == 0
    found = Answer(first.tokens, KNOWN)

    for level in (1, 2):
        sleep(worker, level)
        wake(worker)
        assert ask(worker) == found
        assert counted(worker, "hits_total") == level * NUM_BLOCKS
    assert ask(worker, salt="another tenant") == first
    assert counted(worker, "hits_total") == 2 * NUM_BLOCKS

    sleep(worker, 3)
    wake(worker)
    worker.start()
    assert ask(worker) == found
    assert ask(worker, salt="another tenant") == found, "its own"
    assert counted(worker, "hits_total") == 4 * NUM_BLOCKS
    assert counted(worker, "misses_total") == 0

    for pid in (worker.process.pid, worker.engine()):
        os.kill(pid, signal.SIGKILL)
    for file in (tmp_path / "kv").glob("*/*.kv"):
        if file.name < "0080":  # the chain breaks somewhere: what is behind is computed
            *start, last = file.read_bytes()
            file.write_bytes(bytes([*start, last ^ 1]))
    fresh = start_worker(model, *flags)
    fresh.start()
    answer = ask(fresh)
    assert answer.tokens == first.tokens
    assert answer.cached == 16 * counted(fresh, "hits_total") < KNOWN
    assert counted(fresh, "misses_total") == 1

    other = start_worker(model, *flags, "--dtype", "bfloat16")
    other.start()
    assert ask(other).cached == 0
    assert counted(other, "hits_total") == 0

    rounded = start_worker(model, *flags, "--kv-cache-dtype", "int8")
    rounded.start()
    answer = ask(rounded)
    assert answer.cached == 0
    sleep(rounded, 2)
    wake(rounded)
    assert ask(rounded) == Answer(answer.tokens, KNOWN)


def test_an_encrypted_session_is_found_by_who_has_the_secret_alone(start_worker, tmp_path):
    model = write_tiny_model(tmp_path / "model", max_position_embeddings=MAX_LEN)
    flags = ["--max-model-len", str(MAX_LEN), "--kv-store-dir", str(tmp_path / "kv"), "--kv-store-size", "256Mi"]

    def start(letter):
        worker = start_worker(model, *flags, prefix=["env", f"DORMOUSE_KV_STORE_KEY={letter * 32}"])
        worker.start()
        return worker

    first = start("a")
    said = ask(first).tokens
    sleep(first, 2)
    assert ask(start("a")) == Answer(said, KNOWN)
    other = start("b")
    assert ask(other) == Answer(said, 0)
    assert (counted(other, "hits_total"), counted(other, "misses_total")) == (0, 0)


def test_a_session_goes_on_at_a_neighbour_that_runs_all_along(start_worker, tmp_path):
    model = write_tiny_model(tmp_path / "model", max_position_embeddings=MAX_LEN)
    flags = ["--max-model-len", str(MAX_LEN), "--kv-store-dir", str(tmp_path / "kv"), "--kv-store-size", "256Mi"]
    first, second = (start_worker(model, *flags) for _ in range(2))
    for worker in (first, second):
        worker.start()
    assert ask(second, salt="before").cached == 0
    said = ask(first, salt="tenant").tokens
    wait_for(lambda: counted(first, "writes_total") >= NUM_BLOCKS, "the idle worker has written all that it has")
    assert ask(second, salt="tenant") == Answer(said, KNOWN)
    assert counted(second, "found_total") == counted(second, "hits_total") == NUM_BLOCKS
    assert ask(second, salt="another tenant") == Answer(said, 0)
    assert counted(second, "misses_total") == 0
