"""A canary has its share of what comes through a real Envoy, and gets no more at any door when it fails at one."""

import asyncio

import grpc
import pytest

from dormouse_api.names import METADATA_CANARY
from dormouse_api.status import CallError
from dormouse_gateway.canary.trial import LEAST_ERRORS
from dormouse_gateway.openai.testing import TalkingWorker
from dormouse_gateway.picker.asked import code_of
from dormouse_gateway.testing.workers import NAMESPACE, infd, pod
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, INFERENCE_KEYS, PODS
from dormouse_kube.reflector import ObjectKey
from tests.gateway.clients.test_inference_keys import infk
from tests.gateway.kit import ask, tokens_of
from tests.gateway.picker.conftest import CHAT, HI, running_door
from tests.waiting import until

CANARY = ObjectKey(NAMESPACE, "next")
ALWAYS, NEVER = {METADATA_CANARY: "always"}, {METADATA_CANARY: "never"}
STREAM = {**HI, "stream": True}
BROKEN = CallError(grpc.StatusCode.INTERNAL, "it fails")


@pytest.fixture
async def town(make_town):
    """A town with one worker, the canary's beside it, and the canary itself not there yet."""
    async with make_town(1) as made:
        worker = TalkingWorker(name="next")
        await worker.start()
        made.workers.append(worker)
        async with running_door(worker, "uid-next", name="next") as port:
            made.http_ports.append(port)
            yield made
        await worker.stop()


@pytest.fixture
def add_canary(town):
    """Add the canary; wait until the gateway hears of it."""

    async def add(*, offered=True, **canary):
        serving = {"inferencePool": True} if offered else {}
        town.house.kube.put(
            INFERENCE_DEPLOYMENTS, infd("next", serving=serving, canary={"of": "tiny", "weight": 0, **canary})
        )
        worker = town.workers[1]
        town.house.kube.put(PODS, pod("next-w", "next", worker.address, uid="uid-next", http_port=town.http_ports[1]))
        await until(lambda: town.router.catalogue.get(CANARY) and town.router.pool.is_ready(CANARY))
        await until(lambda: town.house.hears("next"))

    return add


async def read(town, url, body):
    """Return the status of a response that was read to its end."""
    async with town.session.post(url + CHAT, json=body) as response:
        await response.read()
        return response.status


def shares(town):
    return [len(worker.seen) for worker in town.workers]


def trial(town):
    canaries = town.house.gateway._proxy.canaries
    return canaries._try_of(town.router.catalogue.get(CANARY)).trial


async def test_it_gets_its_share_by_lot_and_who_asks_for_it_or_against_it(town, add_canary):
    await add_canary(weight=50)
    async with town.envoy() as url:
        for _ in range(20):
            assert (await town.ask(url))[0] == 200
        assert min(shares(town)) >= 4, "the dice are always the same"
        before = shares(town)
        for _ in range(5):
            assert (await town.ask(url, headers=ALWAYS))[0] == 200
            assert (await town.ask(url, headers=NEVER))[0] == 200
        assert [now - then for now, then in zip(shares(town), before, strict=True)] == [5, 5]
    assert {seen.request.model for seen in town.workers[1].seen} == {"next"}, "the name by which its workers know it"
    assert not town.workers[1].seen[-1].values(METADATA_CANARY)
    await until(lambda: len(trial(town).canary.errors) == len(town.workers[1].seen))


async def test_it_gets_all_of_the_keys_that_it_names(town, add_canary):
    town.house.kube.put(INFERENCE_KEYS, infk("friends"))
    await add_canary(keys=["friends"])
    bearer = {"authorization": "Bearer friends-secret"}
    await until(lambda: town.house.gateway._keys.identify(tuple(bearer.items())).key)
    async with town.envoy() as url:
        for _ in range(3):
            assert (await town.ask(url, headers=bearer))[0] == 200
    assert shares(town) == [0, 3]


async def test_one_that_is_not_offered_to_other_gateways_is_passed_over(town, add_canary):
    await add_canary(offered=False, weight=100)
    async with town.envoy() as url:
        assert (await town.ask(url, headers=ALWAYS))[0] == 200
    assert shares(town) == [1, 0]


async def test_a_request_that_falls_to_a_sleeping_one_waits_for_it(town, add_canary):
    await add_canary(weight=100)
    town.workers[1].tell_load(ready=False)
    await until(lambda: not town.router.pool.is_ready(CANARY))
    async with town.envoy() as url:
        asked = asyncio.create_task(read(town, url, STREAM))
        await until(lambda: town.router.activity.activity(CANARY).held)
        town.workers[1].tell_load(ready=True)
        assert await asked == 200
    assert shares(town) == [0, 1]
    await until(lambda: trial(town).canary.errors)
    assert not trial(town).canary.firsts_s, "who waits for a worker is not timed"


async def test_one_that_fails_gets_no_more_at_any_door(town, add_canary):
    await add_canary(weight=100)
    town.workers[1].fail_before = BROKEN
    async with town.envoy() as url:
        assert [(await town.ask(url))[0] for _ in range(LEAST_ERRORS)] == [500] * LEAST_ERRORS
        await until(lambda: town.router.activity.activity(CANARY).fault)
        assert (await town.ask(url, headers=ALWAYS))[0] == 200
    assert await tokens_of(ask(town.house, metadata=((METADATA_CANARY, "always"),)))
    assert shares(town) == [2, LEAST_ERRORS]


async def test_first_tokens_of_streams_are_compared_and_no_whole_answers(town, add_canary):
    await add_canary(weight=100)
    async with town.envoy() as url:
        assert [await read(town, url, body) for body in (HI, STREAM)] == [200, 200]
        await until(lambda: len(trial(town).canary.errors) == 2)
    assert len(trial(town).canary.firsts_s) == 1


@pytest.mark.parametrize(
    ("status", "code"),
    [(200, "OK"), (404, "INVALID_ARGUMENT"), (429, "RESOURCE_EXHAUSTED"), (500, "INTERNAL"), (503, "UNAVAILABLE")],
)
def test_a_responses_status_is_judged_as_our_own_api_s(status, code):
    assert code_of(status) is grpc.StatusCode[code]
