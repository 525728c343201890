"""What a client sees when a worker refuses, dies or is too late, and when the client leaves: over real sockets."""

import asyncio

import grpc

from dormouse_api.status import CallError, retry_after_s
from dormouse_gateway.testing.workers import set_ready, unavailable
from tests.gateway.kit import ask, refusal_of, tokens_of


async def test_a_refusal_before_the_first_message_is_retried_on_the_other_worker_with_the_same_seed(house, workers):
    await house.add("tiny", workers)
    for worker in workers:
        worker.fail_before = unavailable()
    workers[1].fail_before = None
    assert await tokens_of(ask(house)) == [1, 2, 3]
    assert await tokens_of(ask(house)) == [1, 2, 3]
    refused, answered = workers[0].seen[0].request, workers[1].seen[0].request
    assert refused == answered
    assert answered.sampling_params.HasField("seed")
    assert answered.request_id


async def test_a_retry_goes_to_another_worker_even_if_that_one_is_busier(house, workers):
    await house.add("tiny", workers)
    workers[1].is_gated = True
    workers[0].fail_before = unavailable()
    calls = [asyncio.create_task(tokens_of(ask(house))) for _ in range(3)]
    await house.until(lambda: len(workers[1].seen) == 3)
    workers[1].gate.set()
    assert await asyncio.gather(*calls) == [[1, 2, 3]] * 3


async def test_the_worker_that_refused_is_not_asked_again_at_once(make_house, workers):
    async with make_house(saturated_timeout_s=0.05) as house:
        await house.add("tiny", workers[:1])
        workers[0].fail_before = unavailable()
        await refusal_of(ask(house))
        assert len(workers[0].seen) == 1


async def test_where_there_is_no_other_worker_the_request_waits_until_the_one_that_refused_may_be_asked_again(
    house, workers
):
    await house.add("tiny", workers[:1])
    await house.until(lambda: workers[0].watchers)
    workers[0].fail_before = unavailable()
    call = ask(house)
    await house.until(lambda: len(house.gateway.holder) == 1)
    workers[0].fail_before = None
    assert await tokens_of(call) == [1, 2, 3]
    assert len(workers[0].seen) == 2


async def test_a_dead_worker_is_passed_over(house, workers):
    await house.add("tiny", workers)
    await workers[0].stop()
    for _ in range(4):
        assert await tokens_of(ask(house)) == [1, 2, 3]
    assert len(workers[1].seen) == 4


async def test_a_request_is_tried_once_on_each_worker_as_long_as_neither_may_be_asked_again(make_house, workers):
    async with make_house(saturated_timeout_s=0.05) as house:
        await house.add("tiny", workers)
        for worker in workers:
            worker.fail_before = unavailable(retry_after_s=3.0)
        error = await refusal_of(ask(house))
    assert (error.code(), error.details()) == (grpc.StatusCode.UNAVAILABLE, "draining")
    assert retry_after_s(error) == 3.0
    assert [len(worker.seen) for worker in workers] == [1, 1]


async def test_where_nobody_else_is_ready_in_time_the_first_failure_stands(make_house, workers):
    async with make_house(saturated_timeout_s=0.05) as house:
        await house.add("tiny", workers[:1])
        await workers[0].stop()
        error = await refusal_of(ask(house))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details().startswith("worker default/tiny-w0 failed before its first message: ")
    assert retry_after_s(error) == 1.0


async def test_a_worker_that_is_another_model_by_now_is_unavailable_not_unknown(make_house, workers):
    async with make_house(saturated_timeout_s=0.05) as house:
        await house.add("tiny", workers[:1])
        workers[0].fail_before = CallError(grpc.StatusCode.NOT_FOUND, "no model 'tiny' here")
        error = await refusal_of(ask(house))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "no model 'tiny' here" in error.details()


async def test_after_the_first_message_a_workers_error_passes_through(house, workers):
    await house.add("tiny", workers)
    for worker in workers:
        worker.fail_after = CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue holds 64 requests", 2.5)
    error = await refusal_of(ask(house))
    assert (error.code(), error.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue holds 64 requests")
    assert retry_after_s(error) == 2.5
    assert sum(len(worker.seen) for worker in workers) == 1


async def test_a_worker_killed_in_the_middle_is_unavailable_where_there_is_no_other_and_none_is_waited_for(
    house, workers
):
    await house.add("tiny", workers[:1], lifecycle={"desiredState": "Asleep"})
    workers[0].is_gated = True
    call = ask(house)
    await call.read()
    await workers[0].stop()
    await house.until(lambda: not house.hears("tiny"))
    set_ready(house.kube, "tiny-w0", ready=False)
    error = await refusal_of(call)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "failed after 1 messages" in error.details()
    assert retry_after_s(error) == 1.0


async def test_errors_that_are_not_about_availability_are_not_retried(house, workers):
    await house.add("tiny", workers)
    for worker in workers:
        worker.fail_before = CallError(grpc.StatusCode.INVALID_ARGUMENT, "temperature is -1; it must be at least 0")
    error = await refusal_of(ask(house))
    assert (error.code(), error.details()) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "temperature is -1; it must be at least 0",
    )
    assert sum(len(worker.seen) for worker in workers) == 1


async def test_a_client_that_cancels_frees_the_worker(house, workers):
    await house.add("tiny", workers[:1])
    workers[0].is_gated = True
    call = ask(house)
    await call.read()
    call.cancel()
    await workers[0].cancelled.wait()
    await house.until(lambda: house.outstanding() == 0)
    count = {"model": "default/tiny", "method": "Generate", "code": "CANCELLED"}
    await house.until(lambda: house.gateway.metrics.value("dormouse_gateway_requests_total", **count) == 1)


async def test_the_clients_deadline_reaches_the_worker_and_ends_the_call(house, workers):
    await house.add("tiny", workers[:1])
    workers[0].is_gated = True
    call = ask(house, timeout=500)
    await call.read()
    assert 0 < workers[0].seen[0].timeout_s <= 502, "gRPC rounds up for each of two ways"
    call.cancel()
    error = await refusal_of(ask(house, timeout=0.3))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await house.until(lambda: house.outstanding() == 0)


async def test_a_request_without_a_deadline_gets_the_servers(make_house, workers):
    async with make_house(default_deadline_s=1.0) as house:
        await house.add("tiny", workers[:1])
        workers[0].is_gated = True
        error = await refusal_of(ask(house, timeout=None))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    async with make_house(default_deadline_s=500.0) as house:
        await house.add("tiny", workers[:1])
        call = ask(house, timeout=None)
        await call.read()
        assert 0 < workers[0].seen[-1].timeout_s <= 501, "gRPC rounds up"
        call.cancel()
