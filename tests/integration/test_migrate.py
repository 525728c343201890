"""Real workers that die or stop in the middle of real streams: what comes through the gateway is as if nothing had."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from grpc import aio
from transformers import AutoTokenizer

from dormouse_api.testing_tickets import GATEWAY_SEED
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_gateway.routing import policy
from dormouse_gateway.seeds import Seeds
from dormouse_gateway.server import Gateway
from dormouse_gateway.settings import Settings
from dormouse_gateway.testing.slices import ControlledKube
from dormouse_gateway.testing.workers import infd, pod
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS
from tests.integration.conftest import EPOCH
from tests.integration.crawling import CRAWLING, crawling, own_copy
from tests.integration.migrate_kit import Reader, check_same
from tests.waiting import PATIENCE_S, until

PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.7}
BEFORE = 6  # tokens of each choice before something happens: a small part of it
LONG = 200  # tokens


@pytest.fixture(scope="module")
def start_crawler(start_worker, tiny_model, tmp_path_factory):
    """Start workers of the same model each of which can be had to crawl."""

    def start(*flags):
        return start_worker(own_copy(tiny_model, tmp_path_factory.mktemp("own") / "model"), *CRAWLING, *flags)

    return start


@pytest.fixture(scope="module")
def pair(start_crawler):
    """Two workers of the same model, one with other chunks and blocks."""
    flags = ("--engine-restart-window", "0")
    made = [start_crawler(*flags), start_crawler(*flags, "--max-num-batched-tokens", "16")]
    for worker in made:
        worker.start()
    return made


@pytest.fixture(scope="module")
def byte_tokens(tiny_model):
    """The tokens of single bytes from which characters of one to three bytes can be made, in any order."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    return sorted({token for char in "aé日" for token in tokenizer(char, add_special_tokens=False)["input_ids"]})


@asynccontextmanager
async def gateway_of(workers, **spec):
    """Run a gateway that knows these workers; only the first gets requests. Yield a stub, and the API server."""
    kube = ControlledKube()
    kube.put(INFERENCE_DEPLOYMENTS, infd("tiny", **spec))
    for index, worker in enumerate(workers):
        kube.put(PODS, pod(f"w{index}", "tiny", f"127.0.0.1:{worker.port}", uid=worker.pod_uid))
    free = {"port": 0, "control_port": 0, "metrics_port": 0, "http_port": 0}
    settings = Settings(host="127.0.0.1", lame_duck_s=0, drain_timeout_s=5, **free)
    gateway = Gateway(settings, Seeds((GATEWAY_SEED,)), kube, rng=random.Random(1))
    ports, stop = await gateway.start(), asyncio.Event()
    running = asyncio.create_task(gateway.run(stop))
    async with aio.insecure_channel(f"127.0.0.1:{ports.inference}") as channel:
        try:
            await until(lambda: gateway.router.is_synced)
            address = f"127.0.0.1:{ports.inference}"
            house = SimpleNamespace(stub=rpc.InferenceStub(channel), kube=kube, gateway=gateway, address=address)
            await only(house, "w0")
            yield house
        finally:
            stop.set()
            await running


@dataclass(frozen=True)
class Only:
    """Has only these workers get requests."""

    names: tuple[str, ...]

    def choose(self, _demand, workers):
        return next((policy.Choice(worker) for worker in workers if worker.name.split("/")[1] in self.names), None)


async def only(house, *names):
    """Have only these workers get requests. All must have said that they take some: that closes every breaker."""
    pool = house.gateway.router.pool
    (deployment,) = house.gateway.router.catalogue.deployments()
    endpoints = pool.endpoints_of(deployment.key)
    await until(lambda: endpoints and all(pool.room_of(endpoint).is_open for endpoint in endpoints))
    pool.policy = Only(names)


async def read_all(house, asked):
    return await asyncio.gather(*(Reader(house, params).read() for params in asked))


async def begin_all(house, asked):
    readers = [Reader(house, params) for params in asked]
    await asyncio.gather(*(reader.begin(BEFORE) for reader in readers))
    return readers


async def end_all(readers):
    return await asyncio.gather(*(reader.read() for reader in readers))


async def requests_to_test(house, byte_tokens):
    """Return requests of every kind, and what is said to them where nothing happens."""
    bytewise = {"temperature": 50.0, "allowed_token_ids": byte_tokens, "logprobs": 2, "max_tokens": LONG}
    (whole,) = await read_all(house, [pb.SamplingParams(seed=5, **bytewise)])
    text = whole.choices[0].text
    late = len(text) * 3 // 4
    stop = text[late : late + 12]
    assert text.index(stop) == late
    asked = [
        pb.SamplingParams(temperature=0, seed=1, max_tokens=LONG, ignore_eos=True, logprobs=0, **PENALTIES),
        pb.SamplingParams(seed=5, stop=[stop], **bytewise),
        pb.SamplingParams(temperature=0.9, seed=9, n=2, logprobs=1, ignore_eos=True, max_tokens=LONG, top_p=0.95),
        pb.SamplingParams(seed=6, n=2, prompt_logprobs=1, **bytewise, **PENALTIES),
    ]
    wholes = await read_all(house, asked)
    assert wholes[1].choices[0].end == (pb.FINISH_REASON_STOP, stop)
    assert "�" in wholes[3].choices[0].text or any(ord(char) > 127 for char in wholes[3].choices[0].text)
    assert not any(choice.migrated for whole in wholes for choice in whole.choices.values())
    return asked, wholes


def check_all(told, wholes):
    for answer, whole in zip(told, wholes, strict=True):
        check_same(answer, whole)
        assert all(choice.migrated for choice in answer.choices.values())


async def test_streams_go_on_when_their_workers_engine_or_the_whole_worker_is_killed(pair, start_crawler, byte_tokens):
    """First the engine of one, which the worker survives and tells of; when it serves again, all of the other."""
    survivor, doomed = pair[0], start_crawler("--max-num-batched-tokens", "32")
    await asyncio.to_thread(doomed.start)
    async with gateway_of([survivor, doomed]) as house:
        asked, wholes = await requests_to_test(house, byte_tokens)
        with crawling(survivor.model):
            readers = await begin_all(house, asked)
            await only(house, "w0", "w1")
            os.kill(survivor.engine(), signal.SIGKILL)
        check_all(await end_all(readers), wholes)

        await asyncio.to_thread(survivor.start)
        await only(house, "w1")
        with crawling(doomed.model):
            readers = await begin_all(house, asked)
            await only(house, "w0", "w1")
            doomed.process.kill()
        check_all(await end_all(readers), wholes)
        assert house.gateway.metrics.value("dormouse_migrated_total", outcome="done") == 2 * len(asked)
        assert house.gateway.migrator.room.used_bytes == 0


async def test_streams_of_the_only_worker_go_on_in_its_next_engine(pair):
    """Nobody else serves: they wait, as requests do, until its front has started another engine, and miss nothing."""
    worker = pair[0]
    asked = [
        pb.SamplingParams(temperature=0, seed=1, max_tokens=LONG, ignore_eos=True, logprobs=0, **PENALTIES),
        pb.SamplingParams(temperature=0.9, seed=9, n=2, logprobs=1, ignore_eos=True, max_tokens=LONG, top_p=0.95),
    ]
    async with gateway_of([worker]) as house:
        wholes = await read_all(house, asked)
        with crawling(worker.model):
            readers = await begin_all(house, asked)
            os.kill(worker.engine(), signal.SIGKILL)
        ending = asyncio.create_task(end_all(readers))
        await until(lambda: len(house.gateway.holder) == sum(len(whole.choices) for whole in wholes))
        await asyncio.to_thread(worker.start)
        check_all(await ending, wholes)
        assert house.gateway.metrics.value("dormouse_migrated_total", outcome="done") == len(asked)
        assert len(house.gateway.holder) == house.gateway.migrator.room.used_bytes == 0


async def test_streams_go_on_when_worker_after_worker_gives_up_what_it_has(pair, byte_tokens):
    async with gateway_of(pair) as house:
        asked, wholes = await requests_to_test(house, byte_tokens)
        num_choices = sum(len(whole.choices) for whole in wholes)
        with crawling(*(worker.model for worker in pair)):
            readers = await begin_all(house, asked)
            counts = [worker.status().request_counter for worker in pair]
            for here, there in ((0, 1), (1, 0)):
                num_begun = await asyncio.to_thread(first_tokens, pair[there])
                await only(house, f"w{there}")
                await asyncio.to_thread(give_up, pair[here])
                await begun(pair[there], num_begun + num_choices)
        check_all(await end_all(readers), wholes)
    assert [worker.status().request_counter for worker in pair] == [count + num_choices for count in counts]


async def begun(worker, count):
    """Return when a worker has said something to so many choices: only then may one return to where it was before."""
    async with asyncio.timeout(PATIENCE_S):
        while await asyncio.to_thread(first_tokens, worker) < count:
            pass


def first_tokens(worker):
    """Return to how many choices a worker has said something."""
    lines = worker.page().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:time_to_first_token_seconds_count"))


def give_up(worker):
    """Have the worker end what it has, as before a sleep in a hurry, and take requests again."""
    prepare = control.PrepareSleepRequest(epoch=EPOCH, level=1, mode=control.DRAIN_MODE_ABORT)
    worker.operate("PrepareSleep", prepare)
    worker.operate("WakeUp", control.WakeUpRequest(epoch=EPOCH))
