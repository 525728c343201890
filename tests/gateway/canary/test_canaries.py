"""Requests of a model that has a canary: who gets them, and when the canary gets no more. Over real sockets."""

import aiohttp
import grpc
import pytest

from dormouse_api.canaries import try_of
from dormouse_api.names import METADATA_CANARY
from dormouse_api.status import CallError
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_gateway.canary.trial import LEAST_ERRORS, LEAST_FIRSTS
from dormouse_gateway.testing.workers import NAMESPACE
from dormouse_kube.api import INFERENCE_DEPLOYMENTS
from dormouse_kube.reflector import ObjectKey
from tests.gateway.kit import ask, refusal_of, tokens_of

ALWAYS, NEVER = ((METADATA_CANARY, "always"),), ((METADATA_CANARY, "never"),)
STANDING, CANARY = ObjectKey(NAMESPACE, "tiny"), ObjectKey(NAMESPACE, "next")
BROKEN = CallError(grpc.StatusCode.INTERNAL, "it fails")


@pytest.fixture
def add_canary(house, workers):
    """Add a deployment with the first worker, and a canary of it with the second."""

    async def add(*, lifecycle=None, **canary):
        await house.add("tiny", workers[:1])
        spec = {"lifecycle": lifecycle} if lifecycle else {}
        await house.add("next", workers[1:], canary={"of": "tiny", **canary}, **spec)

    return add


def shares(workers):
    return [len(worker.seen) for worker in workers]


def change(house, **canary):
    house.kube.edit(INFERENCE_DEPLOYMENTS, *CANARY, lambda obj: obj["spec"]["canary"].update(canary))


def known(house):
    return house.gateway.router.catalogue.get(CANARY)


async def test_a_canary_gets_its_share_by_lot(house, workers, add_canary):
    await add_canary(weight=25)
    for _ in range(100):
        await tokens_of(ask(house))
    standing, canary = shares(workers)
    assert standing + canary == 100
    assert 15 <= canary <= 35
    assert {seen.request.model for seen in workers[1].seen} == {"next"}, "the name by which its workers know it"


@pytest.mark.parametrize(
    ("weight", "metadata", "shared"), [(0, ALWAYS, [0, 5]), (100, NEVER, [5, 0]), (100, (), [0, 5])]
)
async def test_a_request_may_ask_for_it_or_against_it(house, workers, add_canary, weight, metadata, shared):
    await add_canary(weight=weight)
    for _ in range(5):
        await tokens_of(ask(house, metadata=metadata))
    assert shares(workers) == shared


async def test_without_a_weight_nobody_comes_by_lot_and_its_own_name_means_the_canary(house, workers, add_canary):
    await add_canary()
    await tokens_of(ask(house))
    await tokens_of(ask(house, "next", metadata=NEVER))
    assert shares(workers) == [1, 1]


@pytest.mark.parametrize(
    "spec", [{"paused": True}, {"lifecycle": {"desiredState": "Asleep"}}, {"of": "other"}, {"of": "next"}]
)
async def test_a_canary_that_takes_none_is_passed_over(house, workers, add_canary, spec):
    await add_canary(**{"weight": 100, **spec})
    if "lifecycle" in spec:
        workers[1].tell_load(ready=False)
        await house.until(lambda: not house.gateway.router.pool.is_ready(CANARY))
    await tokens_of(ask(house, metadata=ALWAYS))
    assert shares(workers) == [1, 0]


async def test_a_request_that_falls_to_a_sleeping_canary_waits_for_it(house, workers, add_canary):
    await add_canary(weight=100)
    workers[1].tell_load(ready=False)
    await house.until(lambda: not house.gateway.router.pool.is_ready(CANARY))
    call = ask(house)
    await house.until(lambda: len(house.gateway.holder) == 1)
    workers[1].tell_load()
    assert await tokens_of(call) == [1, 2, 3]
    assert shares(workers) == [0, 1]


async def test_while_the_other_one_sleeps_a_canary_answers_its_own_share_and_no_more(house, workers, add_canary):
    await add_canary()
    workers[0].tell_load(ready=False)
    await house.until(lambda: not house.gateway.router.pool.is_ready(STANDING))
    held = ask(house)
    await house.until(lambda: len(house.gateway.holder) == 1)
    assert await tokens_of(ask(house, metadata=ALWAYS)) == [1, 2, 3]
    assert shares(workers) == [0, 1]
    workers[0].tell_load()
    assert await tokens_of(held) == [1, 2, 3]
    assert shares(workers) == [1, 1]


async def test_of_two_canaries_the_oldest_counts_and_the_other_takes_its_place(house, workers, add_canary):
    await add_canary(weight=100)
    await house.add("second", workers[:1], canary={"of": "tiny", "weight": 100})
    catalogue = house.gateway.router.catalogue
    assert catalogue.canary_of(STANDING).key == CANARY
    house.kube.finish_deletion(INFERENCE_DEPLOYMENTS, *CANARY)
    await house.until(lambda: catalogue.canary_of(STANDING).key.name == "second")
    house.kube.finish_deletion(INFERENCE_DEPLOYMENTS, NAMESPACE, "second")
    await house.until(lambda: catalogue.canary_of(STANDING) is None)


async def test_a_canary_that_fails_gets_no_more_after_three_and_the_operator_is_told_which_try(
    house, workers, add_canary
):
    await add_canary(weight=100)
    workers[1].fail_before = BROKEN
    codes = [(await refusal_of(ask(house))).code() for _ in range(LEAST_ERRORS)]
    assert codes == [grpc.StatusCode.INTERNAL] * LEAST_ERRORS
    for _ in range(5):
        assert await tokens_of(ask(house, metadata=ALWAYS)) == [1, 2, 3]
    assert shares(workers) == [5, LEAST_ERRORS]
    fault = house.gateway.router.activity.activity(CANARY).fault
    assert fault.try_name == known(house).canary.try_name
    assert "3 of its last 3 requests failed" in fault.words
    assert 'dormouse_gateway_canaries_aborted_total{model="default/next"} 1.0' in house.gateway.metrics.text().decode()


async def test_another_spec_is_another_try_but_not_other_replicas(house, workers, add_canary):
    await add_canary(weight=100)
    workers[1].fail_before = BROKEN
    for _ in range(LEAST_ERRORS):
        await refusal_of(ask(house))
    house.kube.edit(INFERENCE_DEPLOYMENTS, *CANARY, lambda obj: obj["spec"].update(replicas=3))
    await house.until(lambda: known(house).replicas == 3)
    await tokens_of(ask(house))
    assert shares(workers) == [1, LEAST_ERRORS]
    workers[1].fail_before = None
    change(house, weight=99, maxErrorPercent=10)
    await house.until(lambda: known(house).canary.weight == 99)
    await tokens_of(ask(house, metadata=ALWAYS))
    assert shares(workers) == [1, LEAST_ERRORS + 1]


async def test_a_request_that_began_under_another_try_says_nothing_of_this_one(house, workers, add_canary):
    await add_canary(weight=100)
    workers[1].is_gated = True
    calls = [ask(house) for _ in range(LEAST_ERRORS)]
    for call in calls:
        await call.read()
    change(house, weight=99)
    await house.until(lambda: known(house).canary.weight == 99)
    workers[1].fail_after = BROKEN
    workers[1].gate.set()
    for call in calls:
        await refusal_of(call)
    workers[1].fail_after = None
    await tokens_of(ask(house, metadata=ALWAYS))
    assert shares(workers) == [0, LEAST_ERRORS + 1]


async def test_what_another_gateway_saw_ends_it_here_as_well(house, workers, add_canary):
    await add_canary(weight=100)

    def abort(obj):
        obj.setdefault("status", {})["canary"] = {"state": "Aborted", "message": "slow", "try": try_of(obj["spec"])}

    house.kube.edit(INFERENCE_DEPLOYMENTS, *CANARY, abort)
    await house.until(lambda: known(house).canary.is_aborted)
    await tokens_of(ask(house, metadata=ALWAYS))
    assert shares(workers) == [1, 0]
    change(house, weight=50)
    await house.until(lambda: not known(house).canary.is_aborted)


async def test_an_adapter_that_the_canary_does_not_have_stays_where_it_is(house, workers):
    adapter = {"name": "sql", "uri": "file:///loras/sql"}
    await house.add("tiny", workers[:1], adapters=[adapter])
    await house.add("next", workers[1:], canary={"of": "tiny", "weight": 100})
    await tokens_of(ask(house, "tiny:sql"))
    change_to = {"adapters": [adapter]}
    house.kube.edit(INFERENCE_DEPLOYMENTS, *CANARY, lambda obj: obj["spec"].update(change_to))
    await house.until(lambda: known(house).adapters)
    await tokens_of(ask(house, "tiny:sql"))
    assert shares(workers) == [1, 1]
    assert workers[1].seen[0].request.model == "sql"


async def test_text_is_tokenized_by_the_deployment_that_was_named(house, workers, add_canary):
    await add_canary(weight=100)
    await house.stub.Tokenize(pb.TokenizeRequest(model="tiny", text="a"), timeout=90, metadata=ALWAYS)
    assert shares(workers) == [1, 0]


async def test_first_tokens_are_compared_where_nobody_had_to_wait(house, add_canary):
    await add_canary()
    canaries = house.gateway._proxy.canaries
    for number in range(LEAST_FIRSTS):
        await tokens_of(ask(house, metadata=ALWAYS if number % 2 else NEVER))
    trial = canaries._try_of(known(house)).trial
    assert len(trial.canary.firsts_s) == len(trial.standing.firsts_s) == LEAST_FIRSTS / 2
    assert "1 tried, 0 stopped" in repr(canaries)


async def test_the_header_asks_over_http_as_well(house, workers, add_canary):
    await add_canary()
    url = f"http://127.0.0.1:{house.ports.openai}/v1/completions"
    body = {"model": "tiny", "prompt": "a", "max_tokens": 2}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=body, headers={METADATA_CANARY: "always"}) as got,
    ):
        assert got.status == 200
        assert (await got.json())["model"] == "tiny"
    assert shares(workers) == [0, 1]
