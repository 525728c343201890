"""Prompts that one real worker computes and another one goes on with, through a real gateway: as if one had."""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import product

import pytest

from dormouse_api.names import DECODE, PREFILL
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.routing.built_in import PrefixAffinity
from dormouse_gateway.testing.workers import NAMESPACE
from dormouse_kube.api import PODS
from tests.integration.migrate_kit import Answer, Reader, check_same
from tests.integration.test_migrate import gateway_of, give_up
from tests.integration.test_sessions import counted
from tests.waiting import until

NUM_PROMPT, NUM_ANSWERED = 200, 100
MANY = 20  # prompts, of which one at least finds its blocks in time, however slow the machine is
SPEC = {"replicas": 3, "roles": {"prefill": {"replicas": 1, "minPromptTokens": NUM_PROMPT}}}
ROLES = (PREFILL, DECODE, DECODE)


def prompt_of(number):
    return [3 + (7 * place + number) % 80 for place in range(NUM_PROMPT)]


def params_of(number, **fields):
    return pb.SamplingParams(temperature=0.9, seed=number, ignore_eos=True, **{"max_tokens": NUM_ANSWERED, **fields})


@pytest.fixture(scope="module")
def workers(start_worker, tiny_model, tmp_path_factory):
    """One for prompts and two that decode, each with a store of its own."""
    made = []
    for name in ("prefill", "decode-0", "decode-1"):
        store = tmp_path_factory.mktemp(name)
        flags = ("--kv-store-dir", str(store), "--kv-store-size", "64Mi", "--engine-restart-window", "0")
        made.append(start_worker(tiny_model, *flags, pod_uid=f"pod-{name}"))
    for worker in made:
        worker.start()
    return made


async def begin_roles(house):
    """Give the workers their roles, and wait until the gateway knows and hears all."""
    for number, role in enumerate(ROLES):
        labels = {"role": role}
        house.kube.edit(PODS, NAMESPACE, f"w{number}", lambda pod, of=labels: pod["metadata"]["labels"].update(of))
    pool = house.gateway.router.pool
    pool.policy = PrefixAffinity()
    (found,) = house.gateway.router.catalogue.deployments()
    await until(lambda: [one.role for one in pool.endpoints_of(found.key)] == list(ROLES))
    await until(lambda: pool.can_hand_over(found.key))


def said_by(worker, number, **fields):
    """Return what one worker says whom nobody else is asked for."""
    answer = Answer()
    for message in worker.inference.Generate(
        pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt_of(number)), sampling_params=params_of(number, **fields)),
        timeout=120,
    ):
        answer.take(message)
    return answer


def handed_over(house):
    return house.gateway.metrics.value("dormouse_migrated_total", outcome="handed_over")


async def test_a_prompt_is_computed_by_one_and_another_one_says_what_it_would_have_said(workers):
    prefill, *decoding = workers
    async with gateway_of(workers, **SPEC) as house:
        await begin_roles(house)
        for number in range(MANY):
            told = await Reader(house, params_of(number, logprobs=1), prompt_of(number)).read()
            check_same(told, await asyncio.to_thread(said_by, prefill, number, logprobs=1))
            assert not told.choices[0].migrated
            if sum(counted(worker, "fetched_total") for worker in decoding):
                break
        else:
            pytest.fail(f"of {MANY} prompts no block was fetched")
        assert handed_over(house) == number + 1
        short = await Reader(house, params_of(0), prompt_of(0)[1:]).read()
        assert short.num_tokens() == NUM_ANSWERED
        assert handed_over(house) == number + 1


async def test_whoever_gives_up_whenever_no_token_is_lost(workers):
    """The worker may be the one that has the stream, or not: the client's tokens are the same."""
    async with gateway_of(workers, **SPEC) as house:
        await begin_roles(house)
        for number, (place, num_before) in enumerate(product(range(3), (0, 1, 40)), 1000):
            reader = Reader(house, params_of(number), prompt_of(number))
            await reader.begin(num_before)
            await asyncio.to_thread(give_up, workers[place])
            told = await reader.read()
            check_same(told, await asyncio.to_thread(said_by, workers[0], number))


async def test_an_engine_that_dies_with_the_prompt_costs_no_token(workers):
    async with gateway_of(workers, **SPEC) as house:
        await begin_roles(house)
        for number, num_before in enumerate((0, 1), 2000):
            reader, engine = Reader(house, params_of(number), prompt_of(number)), workers[0].engine()
            await reader.begin(num_before)
            os.kill(engine, signal.SIGKILL)
            told = await reader.read()
            check_same(told, await asyncio.to_thread(said_by, workers[1], number))
            await until(lambda engine=engine: workers[0].engine() != engine)
            await asyncio.to_thread(workers[0].start)
