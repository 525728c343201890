"""What visitors find: a real gateway that asks for a key, a real worker behind it; and what the worker itself says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dormouse_api.v1 import inference_pb2 as pb
from tests.faults import metrics
from tests.faults.gateway_process import GatewayProcess
from tests.faults.town import Town
from tests.gateway.clients.test_keys import write_key
from tests.integration.conftest import Worker
from tests.outside.clients.asking import NUM_TOKENS, QUESTION

KEY = "visitor-secret"


@pytest.fixture(scope="module")
def worker(start_worker: Any, tiny_model: Path) -> Worker:
    """A worker whose streams can be long."""
    worker: Worker = start_worker(tiny_model, "--max-model-len", "2048")
    worker.start()
    return worker


@pytest.fixture
async def gateway(town: Town, worker: Worker, tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    """A gateway that asks for a key, in front of the worker."""
    keys = tmp_path / "keys"
    keys.mkdir()
    write_key(keys, "visitor")
    await town.model("tiny", f"127.0.0.1:{worker.port}")
    async with town.gateway(api_keys_dir=keys) as gateway:
        yield gateway


@dataclass(frozen=True, slots=True)
class Said:
    """What the worker itself answers, with no gateway and no client library between."""

    text: str
    logprobs: Sequence[float]
    usage: Sequence[int]


def asked_directly(worker: Worker) -> Said:
    """Ask the worker for what the programs ask for."""
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content=QUESTION)])
    params = pb.SamplingParams(temperature=0, max_tokens=NUM_TOKENS, logprobs=0)
    messages = list(worker.inference.Generate(pb.GenerateRequest(chat=chat, sampling_params=params), timeout=60))
    logprobs = [position.sampled.logprob for message in messages for position in message.logprobs]
    usage = messages[-1].usage
    text = "".join(message.text for message in messages)
    return Said(text, logprobs, [usage.prompt_tokens, usage.completion_tokens])


async def is_idle(worker: Worker) -> bool:
    """Return whether a worker computes for nobody and keeps nobody's blocks."""
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    return not any([await metrics.read(worker.metrics_port, name) for name in names])


async def num_generated(worker: Worker) -> float:
    """Return how many tokens a worker has generated."""
    return await metrics.read(worker.metrics_port, "vllm:generation_tokens_total")
