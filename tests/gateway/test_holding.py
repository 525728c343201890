"""Requests for models that sleep or start: held, woken, answered; and every other way out. Over real sockets."""

import grpc

from dormouse_api.status import retry_after_s
from dormouse_gateway.testing.workers import infd, pod, unavailable
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS
from tests.gateway.kit import ask, refusal_of, tokens_of
from tests.gateway.sleepers import TINY, add_asleep, held, is_wanted, metadata_of, rejected, set_status, writes


async def test_a_request_for_a_sleeping_model_wakes_it_and_is_answered_and_told_how(house, workers):
    await add_asleep(house, workers[0], holdTimeoutSeconds=120)
    call = ask(house)
    initial = dict(await call.initial_metadata())
    assert (initial["dormouse-held"], initial["dormouse-hold-timeout-seconds"]) == ("true", "120")
    activity = house.gateway.router.activity.activity(TINY)
    assert (activity.held, activity.in_flight) == (1, 1)
    assert house.gateway.metrics.value("dormouse_held_requests", model="default/tiny") == 1
    await house.until(lambda: is_wanted(house))
    workers[0].tell_load(ready=True)
    assert await tokens_of(call) == [1, 2, 3]
    told = await metadata_of(call)
    assert told["dormouse-start"] == "level2"
    assert 0 < float(told["dormouse-wake-seconds"]) <= float(told["dormouse-hold-seconds"])
    assert (held(house), house.gateway.router.activity.activity(TINY).held) == (0, 0)
    assert house.gateway.metrics.value("dormouse_hold_seconds_count", model="default/tiny") == 1


async def test_a_request_that_needs_not_wait_says_warm_at_the_end(house, workers):
    await house.add("tiny", workers[:1])
    call = ask(house)
    assert await tokens_of(call) == [1, 2, 3]
    told = await metadata_of(call)
    assert told == {"dormouse-start": "warm", "dormouse-hold-seconds": "0.000000", "dormouse-wake-seconds": "0.000000"}
    assert "dormouse-held" not in dict(await call.initial_metadata())
    assert not is_wanted(house)


async def test_a_thousand_requests_in_one_wake_are_answered_in_order_and_nothing_is_written(house, workers):
    await add_asleep(house, workers[0])
    calls = []
    for number in range(1000):
        call = ask(house, request_id=f"{number:04}", timeout=120)
        calls.append(call)
        if number % 50 == 49:  # one connection has its limits, and its own order
            await house.until(lambda: held(house) == len(calls))
    workers[0].tell_load(ready=True)
    for call in calls:
        assert await tokens_of(call) == [1, 2, 3]
    order = [seen.request.request_id for seen in workers[0].seen]
    assert sorted(order) == [f"{number:04}" for number in range(1000)], "each once"
    late = max(abs(int(request_id) - place) for place, request_id in enumerate(order))
    assert late < 100, "those that are under way together may overtake each other, the line does not"
    assert is_wanted(house)
    assert writes(house) == []
    assert held(house) == 0


async def test_a_fresh_worker_gets_a_few_at_first(house, workers):
    await add_asleep(house, workers[0])
    workers[0].is_gated = True
    calls = [ask(house) for _ in range(20)]
    await house.until(lambda: held(house) == 20)
    await house.until(lambda: house.hears("tiny"))  # a first load that is ready opens all room
    workers[0].tell_load(ready=True)
    await house.until(lambda: len(workers[0].seen) == 8)
    assert held(house) == 12
    workers[0].tell_load(ready=True, running_requests=8)
    await house.until(lambda: len(workers[0].seen) == 16)
    workers[0].gate.set()
    for call in calls:
        assert await tokens_of(call) == [1, 2, 3]


async def test_a_model_without_any_pod_is_a_cold_start(house, workers):
    house.kube.put(INFERENCE_DEPLOYMENTS, infd("tiny") | {"status": {"phase": "Zero"}})
    await house.until(lambda: house.gateway.router.catalogue.find("tiny"))
    call = ask(house)
    await house.until(lambda: is_wanted(house))
    house.kube.put(PODS, pod("tiny-w0", "tiny", workers[0].address, ready=False))
    assert await tokens_of(call) == [1, 2, 3], "its worker says so before the kubelet does"
    assert (await metadata_of(call))["dormouse-start"] == "cold"


async def test_a_request_that_comes_while_the_model_wakes_knows_how_deep_it_slept(house, workers):
    await add_asleep(house, workers[0])
    first = ask(house)
    await house.until(lambda: held(house) == 1)
    set_status(house, phase="Waking")
    await house.until(lambda: house.gateway.router.catalogue.find("tiny").phase == "Waking")
    second = ask(house)
    await house.until(lambda: held(house) == 2)
    workers[0].tell_load(ready=True)
    for call in (first, second):
        await tokens_of(call)
        assert (await metadata_of(call))["dormouse-start"] == "level2"


async def test_a_model_that_is_ordered_to_serve_is_waited_for_and_not_asked_to_wake(house, workers):
    await house.add("tiny", workers[:1], ready=False, lifecycle={"desiredState": "Active"})
    call = ask(house)
    await house.until(lambda: held(house) == 1)
    workers[0].tell_load(ready=True)
    assert await tokens_of(call) == [1, 2, 3]
    assert not is_wanted(house)


async def test_a_client_that_goes_leaves_the_line_and_the_wake_goes_on(house, workers):
    await add_asleep(house, workers[0])
    gone, stays = ask(house), ask(house)
    await house.until(lambda: held(house) == 2)
    gone.cancel()
    await house.until(lambda: held(house) == 1)
    stays.cancel()
    await house.until(lambda: held(house) == 0)
    assert house.gateway.router.activity.activity(TINY).in_flight == 0
    await house.until(lambda: is_wanted(house))
    workers[0].tell_load(ready=True)
    assert await tokens_of(ask(house)) == [1, 2, 3]
    assert len(workers[0].seen) == 1


async def test_a_clients_own_deadline_wins(house, workers):
    await add_asleep(house, workers[0])
    error = await refusal_of(ask(house, timeout=0.2))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await house.until(lambda: held(house) == 0)


async def fill(house, worker):
    """Return the calls that keep the only worker busy."""
    await house.add("tiny", [worker], engine={"maxNumSeqs": 2})
    worker.is_gated = True
    running = [ask(house), ask(house)]
    await house.until(lambda: len(worker.seen) == 2)
    return running


async def test_while_all_workers_are_busy_requests_are_refused_after_a_short_time(make_house, workers):
    async with make_house(saturated_timeout_s=0.1, worker_queue=0) as house:
        await fill(house, workers[0])
        error = await refusal_of(ask(house))
        assert (error.code(), retry_after_s(error)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 5.0)
        assert error.details() == "all workers of default/tiny are busy; the request was held for 0.1 s"
        assert (is_wanted(house), rejected(house, "saturated")) == (False, 1)


async def test_while_all_workers_are_busy_requests_wait_for_one(make_house, workers):
    async with make_house(saturated_timeout_s=1000, worker_queue=0) as house:
        running = await fill(house, workers[0])
        waits = ask(house)
        await house.until(lambda: held(house) == 1)
        workers[0].gate.set()
        for call in (*running, waits):
            assert await tokens_of(call) == [1, 2, 3]
        assert (await metadata_of(waits))["dormouse-start"] == "warm"
        assert not is_wanted(house)


async def test_a_worker_that_drains_gets_nothing_and_what_comes_is_held_until_it_is_back(house, workers):
    await house.add("tiny", workers[:1])
    await house.until(lambda: workers[0].watchers == 1)
    assert await tokens_of(ask(house)) == [1, 2, 3]
    workers[0].tell_load(ready=False, draining=True)
    await house.until(lambda: house.gateway.router.activity.activity(TINY).awake_workers == 0)
    call = ask(house)
    await house.until(lambda: held(house) == 1)
    await house.until(lambda: is_wanted(house))
    assert len(workers[0].seen) == 1
    workers[0].tell_load(ready=True)
    assert await tokens_of(call) == [1, 2, 3]


async def test_a_request_that_met_a_worker_on_its_way_to_sleep_is_held_and_answered_after_the_wake(house, workers):
    await house.add("tiny", workers[:1])
    await house.until(lambda: workers[0].watchers == 1)
    workers[0].fail_before = unavailable("the worker is asleep")
    call = ask(house)
    await house.until(lambda: len(workers[0].seen) == 1)
    workers[0].tell_load(ready=False)
    await house.until(lambda: is_wanted(house))
    workers[0].fail_before = None
    workers[0].tell_load(ready=True)
    assert await tokens_of(call) == [1, 2, 3]


async def test_at_the_end_held_requests_are_answered_while_there_is_time(house, workers):
    await add_asleep(house, workers[0])
    call = ask(house)
    await house.until(lambda: held(house) == 1)
    house.stop.set()
    await house.until(lambda: not house.gateway._is_ready)
    workers[0].tell_load(ready=True)
    assert await tokens_of(call) == [1, 2, 3]
    await house.running


async def test_what_is_still_held_at_the_end_of_the_drain_is_handed_back(make_house, workers):
    async with make_house(drain_timeout_s=0.4) as house:
        await add_asleep(house, workers[0])
        calls = [ask(house) for _ in range(10)]
        await house.until(lambda: held(house) == 10)
        house.stop.set()
        for call in calls:
            error = await refusal_of(call)
            assert (error.code(), retry_after_s(error)) == (grpc.StatusCode.UNAVAILABLE, 1.0)
            assert error.details() == "this gateway is shutting down; the request was not sent to any worker"
        await house.running
        assert (held(house), rejected(house, "shutting_down")) == (0, 10)
