"""A router that follows a worker's KV events knows how much of each prompt is cached, whatever the worker does."""

from __future__ import annotations

import json
import os
import random
import signal

import pytest
import zmq

from dormouse_api.names import METADATA_CACHE_SALT, Role
from dormouse_api.testing_tickets import proof
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_worker.model.testing import write_tiny_model
from tests.integration.conftest import EPOCH, PATIENCE_S
from tests.integration.test_sleep import sleep, wake
from tests.ports import free_port
from tests.worker.engine.mirror import Mirror

TOPIC = "kv@pod@tiny"
NUM_BLOCKS = 40  # 640 tokens: prompts of some hundred drive each other out
END = (-1).to_bytes(8, "big", signed=True)


class Router:
    """Follows the worker that publishes at the first of two ports and answers at the second."""

    def __init__(self):
        self.ports = [free_port(), free_port()]
        self.mirror, self.batches = Mirror(), []
        self._context = zmq.Context()
        self._subscriber, self._asker = self._context.socket(zmq.SUB), self._context.socket(zmq.DEALER)
        self._subscriber.subscribe(TOPIC)
        for socket, port in zip((self._subscriber, self._asker), self.ports, strict=True):
            socket.set(zmq.RCVTIMEO, round(1000 * PATIENCE_S))
            socket.connect(f"tcp://127.0.0.1:{port}")

    def close(self):
        self._context.destroy(linger=0)

    def follow(self):
        """Ask for what is new."""
        self._asker.send_multipart([b"", len(self.batches).to_bytes(8, "big")])
        while (message := self._asker.recv_multipart()) != [b"", END, b""]:
            assert int.from_bytes(message[1], "big") == len(self.batches), "numbers have no gaps"
            self.batches.append(message[2])
            self.mirror.read([message[2]])

    def check_subscription(self):
        """All that came by itself was the same, up to the last."""
        number = -1
        while number < len(self.batches) - 1:
            topic, number, batch = self._subscriber.recv_multipart()
            number = int.from_bytes(number, "big")
            assert (topic, batch) == (TOPIC.encode(), self.batches[number])


@pytest.fixture
def router():
    router = Router()
    yield router
    router.close()


def agree(worker):
    """Give the worker a small cache, once it is profiled."""
    worker.report()
    worker.operate("InitializeCache", control.InitializeCacheRequest(epoch=EPOCH, num_gpu_blocks=NUM_BLOCKS))


def ask(worker, router, prompt, salt=""):
    """Ask the worker; how much it found was known before. Return it."""
    router.follow()
    foreseen = router.mirror.num_cached(prompt, 16, salt=salt)
    params = pb.SamplingParams(temperature=0, max_tokens=4)
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt), sampling_params=params)
    metadata = (*proof(Role.GATEWAY), (METADATA_CACHE_SALT, salt)) if salt else ()
    *_, last = worker.inference.Generate(request, timeout=60, metadata=metadata)
    assert last.usage.cached_tokens == foreseen
    return foreseen


def test_a_router_foresees_every_hit_over_sleeps_crashes_and_evictions(start_worker, router, tmp_path):
    """One test, as each step begins where the last one ended: a worker's start takes seconds."""
    endpoint, replay_endpoint = (f"tcp://*:{port}" for port in router.ports)
    config = {"enable_kv_cache_events": True, "endpoint": endpoint, "replay_endpoint": replay_endpoint, "topic": TOPIC}
    worker = start_worker(
        write_tiny_model(tmp_path / "model", max_position_embeddings=512),
        "--kv-events-config",
        json.dumps(config),
        "--keep-prefix-cache",
    )
    agree(worker)
    chance = random.Random(1)
    known = [3 + number % 80 for number in range(300)]

    hits = 0
    for _ in range(25):
        start = chance.choice([0, 0, 40])
        prompt = known[start : start + chance.randint(20, 250)]
        hits += ask(worker, router, prompt, chance.choice(["", "", "tenant"]))
    assert hits
    assert any(b"BlockRemoved" in batch for batch in router.batches)

    ask(worker, router, known)
    assert ask(worker, router, known) == 288
    sleep(worker, 1)
    wake(worker)
    assert ask(worker, router, known) == 288, "kept at level 1"
    sleep(worker, 2)
    wake(worker)
    assert ask(worker, router, known) == 0
    assert ask(worker, router, known) == 288
    sleep(worker, 3)
    router.follow()
    assert not router.mirror.known, "no engine, no cache"
    wake(worker)
    agree(worker)
    assert ask(worker, router, known) == 0
    assert ask(worker, router, known) == 288
    os.kill(worker.engine(), signal.SIGKILL)
    worker.until(lambda status: status.engine_failures == 1)
    agree(worker)
    assert ask(worker, router, known) == 0
    router.follow()
    router.check_subscription()
