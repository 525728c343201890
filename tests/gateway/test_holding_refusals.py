"""Requests that are held in vain or not at all: by whose order or limit, and what they are told. Over real sockets."""

import asyncio

import grpc
import pytest

from dormouse_api.status import retry_after_s
from dormouse_gateway.testing.workers import NAMESPACE
from dormouse_kube.api import INFERENCE_DEPLOYMENTS
from tests.gateway.kit import ask, refusal_of, tokens_of
from tests.gateway.sleepers import TINY, add_asleep, held, is_wanted, rejected, set_status


async def test_a_request_without_a_deadline_is_held_no_longer_than_the_servers(make_house, workers):
    async with make_house(default_deadline_s=0.1) as house:
        await add_asleep(house, workers[0])
        error = await refusal_of(ask(house, timeout=None))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "waited for a worker of default/tiny (phase Asleep)" in error.details()
        assert (held(house), rejected(house, "deadline")) == (0, 1)


async def test_a_wake_that_never_comes_ends_with_the_reason(house, workers):
    await add_asleep(house, workers[0], holdTimeoutSeconds=0.2)
    ready = {"type": "Ready", "status": "True", "reason": "Asleep", "message": ""}
    short = {"type": "Degraded", "status": "True", "reason": "WakeRefused", "message": "1 GiB is missing"}
    set_status(house, phase="Waking", conditions=[ready, short])
    await house.until(lambda: house.gateway.router.catalogue.find("tiny").phase == "Waking")
    errors = await asyncio.gather(*(refusal_of(ask(house)) for _ in range(3)))
    for error in errors:
        assert (error.code(), retry_after_s(error)) == (grpc.StatusCode.UNAVAILABLE, 5.0)
        assert error.details() == (
            "default/tiny has no ready worker (phase Waking); the request was held for 0.2 s; "
            "WakeRefused: 1 GiB is missing"
        )
    assert (held(house), rejected(house, "hold_timeout")) == (0, 3)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"lifecycle": {"desiredState": "Asleep"}}, "spec.lifecycle.desiredState is Asleep"),
        ({"lifecycle": {"desiredState": "Zero"}}, "spec.lifecycle.desiredState is Zero"),
        ({"replicas": 0}, "spec.replicas is 0"),
    ],
)
async def test_an_order_refuses_what_is_held_and_what_comes_and_wakes_nothing(house, workers, spec, words):
    await add_asleep(house, workers[0])
    call = ask(house)
    await house.until(lambda: held(house) == 1 and is_wanted(house))
    house.kube.edit(INFERENCE_DEPLOYMENTS, NAMESPACE, "tiny", lambda obj: obj["spec"].update(spec))
    for refused in (call, ask(house)):
        error = await refusal_of(refused)
        assert (error.code(), retry_after_s(error)) == (grpc.StatusCode.UNAVAILABLE, 30.0)
        assert words in error.details()
    assert held(house) == 0
    assert not house.gateway.router.activity.activity(TINY).held


async def test_a_spec_that_is_not_accepted_is_not_waited_for(house, workers):
    await add_asleep(house, workers[0])
    set_status(house, phase="Rejected")
    await house.until(lambda: house.gateway.router.catalogue.find("tiny").phase == "Rejected")
    assert (await refusal_of(ask(house))).code() is grpc.StatusCode.UNAVAILABLE


async def test_a_deployment_that_is_deleted_refuses_what_it_held(house, workers):
    await add_asleep(house, workers[0])
    call = ask(house)
    await house.until(lambda: held(house) == 1)
    await house.kube.delete(INFERENCE_DEPLOYMENTS, NAMESPACE, "tiny")
    error = await refusal_of(call)
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert error.details() == "default/tiny was deleted while the request waited for a worker"
    assert held(house) == 0


async def test_beyond_the_limit_requests_are_refused_and_the_others_stay(house, workers):
    await add_asleep(house, workers[0], maxHeldRequests=2)
    calls = [ask(house), ask(house)]
    await house.until(lambda: held(house) == 2)
    errors = await asyncio.gather(*(refusal_of(ask(house)) for _ in range(20)))
    assert {error.code() for error in errors} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert retry_after_s(errors[0]) == 5.0
    assert errors[0].details() == (
        "default/tiny has no worker for this request now, and "
        "2 requests wait already; the limit is 2 (spec.lifecycle.maxHeldRequests)"
    )
    assert (held(house), rejected(house, "hold_full")) == (2, 20)
    workers[0].tell_load(ready=True)
    for call in calls:
        assert await tokens_of(call) == [1, 2, 3]
